"""Real processes for tests: a clean environment, free ports, and a launcher's workers."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

LAUNCHED = re.compile("^(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_|SLURM|TORCHELASTIC|PET_|JOB_COMPLETION_INDEX)")
MARK = "PCDET_TEST_PROCESS"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def clean_environment(**variables: object) -> dict[str, str]:
    """This process's environment without what launchers set, with one thread and a mark of its own."""
    kept = {k: v for k, v in os.environ.items() if not LAUNCHED.match(k)}
    ours = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", MARK: uuid.uuid4().hex}
    return kept | ours | {k: str(v) for k, v in variables.items()}


def begin(command: Sequence[object], environment: dict[str, str] | None = None, **options: object) -> subprocess.Popen:
    """Start a command (of Python's, if its first word is an option or a ``.py`` file); its output is one stream."""
    words = [str(word) for word in command]
    if words[0].startswith("-") or words[0].endswith(".py"):
        words = [sys.executable, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, env=environment or clean_environment(), **pipes, **options)


def finish(*jobs: subprocess.Popen, timeout: float = 90) -> tuple[list[int], list[str]]:
    """Exit statuses and outputs; what is left of the jobs then is ended."""
    try:
        outputs = [job.communicate(timeout=timeout)[0] for job in jobs]
        return [job.returncode for job in jobs], outputs
    finally:
        for job in jobs:
            job.kill()


def workers(environment: dict[str, str]) -> dict[int, int]:
    """Process numbers by rank of what a launcher with this environment has started (Linux)."""
    mark = f"{MARK}={environment[MARK]}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        ranks = [int(v[5:]) for v in variables if v.startswith(b"RANK=")]
        if mark in variables and ranks:
            found[ranks[0]] = int(folder.name)
    return found


def wait_for(ready: Callable[[], object], job: subprocess.Popen, timeout: float = 60) -> None:
    """Until ``ready()`` is true. Fails if the job ends before, or after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < deadline, f"{timeout:g} s have gone"
        time.sleep(0.01)


def kill_tree(job: subprocess.Popen) -> None:
    """SIGKILL to a job and to all that it has started (Linux): as when its machine is switched off."""
    for process in _tree(job.pid):
        os.kill(process, signal.SIGKILL)
    job.communicate()


def _tree(process: int) -> list[int]:
    children = [int(n) for file in Path(f"/proc/{process}/task").glob("*/children") for n in file.read_text().split()]
    return [process, *(number for child in children for number in _tree(child))]
