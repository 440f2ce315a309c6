"""One run a folder: two that write the same checkpoints would spoil both."""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pcdet.utils.logging import get_logger

LOCK = ".lock"
PATIENCE = 100.0  # seconds: a server of files keeps the locks of a machine that is gone for 90
_HELD = (errno.EACCES, errno.EAGAIN)


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Within it the folder, which is made if need be, is this process's; the system frees it however the process ends.

    Raises ``ValueError`` that names the process which holds it. Where the file system has no locks nothing is held.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a+", encoding="utf-8") as file:
        # Of the process alone: a lock of the open file would live on in loading processes.
        _wait_for(lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB), folder)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _wait_for(lock: Callable[[], None], folder: Path) -> None:
    began, told = time.monotonic(), False
    while True:
        try:
            return lock()
        except OSError as error:
            if error.errno not in _HELD:
                return None
            user = f"{folder} is in use by another training ({(folder / LOCK).read_text(encoding='utf-8').strip()})"
            waited = time.monotonic() - began
            if waited > PATIENCE:
                raise ValueError(f"{user}. Name another --extra_tag or --output_dir, or end that one first") from error
            if waited > 1 and not told:
                get_logger().warning("%s: waiting at most %.0f s for its end", user, PATIENCE)
                told = True
        time.sleep(0.1)
