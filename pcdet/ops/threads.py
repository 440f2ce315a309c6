"""One thread pool for all CPU kernels; it survives a fork.

numba's own threading is not used: its OpenMP layer kills forked data-loader workers once the parent has called it.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def _shared_pool() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="pcdet-ops")
        return _pool


def _forget_pool() -> None:
    """A forked child inherits the pool object but none of its threads, and possibly a held lock."""
    global _pool, _lock
    _pool = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def parallel_for(kernel: Callable[..., Any], n: int, *args: Any, chunk: int = 1) -> None:
    """Run ``kernel(start, stop, *args)`` over ``[0, n)`` in pieces of ``chunk``, on at most torch's thread count.

    The pieces depend on ``n`` and ``chunk`` only and each must write its own part of the output, so the result is the
    same for any number of threads. One piece, or one thread (``torch.get_num_threads() == 1``, as in data-loader
    workers), runs in the calling thread without the pool. An exception in a piece is raised here.
    """
    if n <= 0:
        return
    pieces = -(-n // chunk)
    helpers = min(torch.get_num_threads(), pieces) - 1
    if helpers <= 0:
        kernel(0, n, *args)
        return
    starts = iter(range(0, n, chunk))  # shared: next() on a range iterator is atomic
    pool = _shared_pool()
    futures = [pool.submit(_run_pieces, kernel, starts, chunk, n, args) for _ in range(helpers)]
    _run_pieces(kernel, starts, chunk, n, args)
    for future in futures:
        if not future.cancel():  # one that has not begun is not needed any more: nothing is left to take
            future.result()


def _run_pieces(kernel: Callable[..., Any], starts: Iterator[int], chunk: int, n: int, args: tuple) -> None:
    for start in starts:
        kernel(start, min(start + chunk, n), *args)
