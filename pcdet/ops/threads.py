"""One thread pool for all CPU kernels; it survives a fork.

numba's own threading is not used: its OpenMP layer kills forked data-loader workers once the parent has called it.
"""

import contextlib
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


def parallel_for(kernel: Callable[..., Any], n: int, *args: Any, chunk: int = 1, threads: int | None = None) -> None:
    """Run ``kernel(start, stop, *args)`` over ``[0, n)`` in pieces of ``chunk``, on at most so many ``threads``,
    by default as many as torch uses.

    The pieces depend on ``n`` and ``chunk`` only and each must write its own part of the output, so the result is the
    same for any number of threads. One piece, or one thread (``torch.get_num_threads() == 1``, as in data-loader
    workers), runs in the calling thread without the pool. An exception in a piece is raised here.
    """
    if n <= 0:
        return
    pieces = -(-n // chunk)
    helpers = min(threads or torch.get_num_threads(), pieces) - 1
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


@contextlib.contextmanager
def one_torch_thread() -> Iterator[int]:
    """Torch's own operators use the calling thread alone. Yields how many threads they used before.

    Where kernels and torch's operators take turns, the threads that torch leaves waiting for more work of its own
    would keep the kernels' threads from running.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def parallel_parts(work: Callable[[int], None], n: int, threads: int) -> None:
    """Call ``work(i)`` for every i below ``n`` on so many threads, in each of which torch itself uses one.

    For work that goes from kernels to torch's products and back, part by part. Call it in :func:`one_torch_thread`.
    """

    def run(first: int, last: int) -> None:
        torch.set_num_threads(1)  # of this thread
        with torch.no_grad():
            for i in range(first, last):
                work(i)

    parallel_for(run, n, threads=threads)
