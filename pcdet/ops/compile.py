"""How CPU kernels are compiled: lazily, without the GIL, cached on disk, and announced once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

from pcdet.utils.logging import get_logger


def device_function(function: Callable) -> Dispatcher:
    """Compile a helper that only kernels call.

    A call that LLVM does not inline counts references of every array it is given, about 20 ns: in a hot loop keep
    helpers to a few lines, and hand over an array and an index rather than a row.

    It must stand in the same file as they do: numba's cache notices that a kernel's own file has changed, but would
    go on using an old helper from another file.
    """
    return numba.njit(nogil=True)(function)


class Kernel:
    """A function that numba compiles when it is first called (``njit(nogil=True, cache=True)``).

    The first compilation on a machine takes seconds, so it is announced in the log; later runs read numba's cache.
    Where no cache folder is writable the kernel is compiled once per process.
    """

    def __init__(self, function: Callable):
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._dispatcher = _jit(function)
        self._announced = False

    def __call__(self, *args: Any) -> Any:
        if not self._announced:
            self._announced = True
            if not _is_cached(self._dispatcher):
                get_logger().info("compiling %s for this CPU (once; cached afterwards)", self.name)
        return self._dispatcher(*args)


def _jit(function: Callable) -> Dispatcher:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # "no locator available": neither the package's folder nor the user's cache is writable
        return numba.njit(nogil=True)(function)


def _is_cached(dispatcher: Dispatcher) -> bool:
    folder = dispatcher.stats.cache_path
    pattern = f"*.{dispatcher.py_func.__qualname__}-*.nbi"
    return folder is not None and any(Path(folder).glob(pattern))
