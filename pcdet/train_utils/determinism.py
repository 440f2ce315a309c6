"""Equal reruns to the bit: the algorithms that allow it, and the names of the operators that do not."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from pcdet.utils.logging import get_logger

_CONFESSION = re.compile(r"(\S+) does not have a deterministic implementation")


def be_deterministic() -> None:
    """Make torch take algorithms that give the same bits every time, where it has some.

    Operators without one go on to run and are named by :func:`naming_operators`. On a CPU the sums also depend on the
    number of threads (OMP_NUM_THREADS), which reruns must share.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # New tensors need not be filled to find readers of uninitialised memory: that costs time at every step.
    torch.utils.deterministic.fill_uninitialized_memory = False


@contextlib.contextmanager
def naming_operators() -> Iterator[set[str]]:
    """Within it, each operator that forbids equal reruns on this device is logged by name, once; yields the names.

    Does nothing unless :func:`be_deterministic` was called.
    """
    named: set[str] = set()
    if not torch.are_deterministic_algorithms_enabled():
        yield named
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=r"\S+ does not have a deterministic implementation")
        show = warnings.showwarning

        def log_or_show(message: Warning | str, *where: Any, **options: Any) -> None:
            found = _CONFESSION.search(str(message))
            if found is None:
                show(message, *where, **options)
            elif found[1] not in named:
                named.add(found[1])
                get_logger().warning(
                    "--fix_random_seed: %s has no deterministic implementation on this device; reruns may differ",
                    found[1],
                )

        warnings.showwarning = log_or_show
        yield named
