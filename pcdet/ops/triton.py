"""What the Triton kernels share: one way to launch them, to list their launches without a GPU, and to read a size.

The files called ``triton.py`` are the only ones that import Triton, and only :func:`pcdet.ops.doors.backend` imports
them, so a machine without Triton never does.

Rules for a kernel: its name ends in ``_kernel``; it is launched through :func:`launch` alone; block sizes are
``tl.constexpr`` parameters in capitals, given by name; sums follow the order of the reference, with ``tl.div_rn`` and
``tl.sqrt_rn`` where it divides or takes roots (``/`` is approximate on a GPU), since :func:`launch` forbids the fusion
of products and sums. ``benchmarks/check_kernels.py`` compiles what the models launch for each architecture.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE_IN_RECORDS = 4096  # what :func:`size_on_host` answers where kernels are not run


class Launch(NamedTuple):
    """A launch that :func:`recording` noted instead of running it."""

    kernel: Any  # triton's JITFunction
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int


_records: list[Launch] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, **constants: Any) -> None:
    """Run a kernel on the device of its first tensor; nothing happens if the grid is empty.

    Products and sums are not fused, so that float32 results equal those of the reference to the bit.
    """
    if _records is not None:
        _records.append(Launch(kernel, grid, arguments, constants, num_warps))
    elif math.prod(grid) > 0:
        with _device_of(arguments):
            kernel[grid](*arguments, num_warps=num_warps, enable_fp_fusion=False, **constants)


def _device_of(arguments: tuple[Any, ...]) -> Any:
    """Triton launches on the current device, which need not be the one where the tensors are."""
    tensor = next(value for value in arguments if isinstance(value, Tensor))
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Within it, launches are listed and not run: outputs stay as they were allocated, on any device."""
    global _records
    before, _records = _records, []
    try:
        yield _records
    finally:
        _records = before


def size_on_host(size: Tensor) -> int:
    """A size that the host needs in order to allocate: here and below alone an operator waits for the GPU."""
    return SIZE_IN_RECORDS if _records is not None else int(size)


def sizes_on_host(sizes: Tensor) -> list[int]:
    """As :func:`size_on_host` for several sizes (K,), which the host waits for only once."""
    return [SIZE_IN_RECORDS] * len(sizes) if _records is not None else sizes.tolist()


def block_of(size: int, least: int, most: int) -> int:
    """The power of two that holds ``size``, within [least, most], themselves powers of two."""
    return min(max(triton.next_power_of_2(max(size, 1)), least), most)


@triton.jit
def span_of_scene(row, counts, other_counts, scenes):
    """First row, and row after the last, of the *other* stack in the scene of each ``row``; both 0 outside all scenes.

    ``row`` is an int32 block of rows of a stack with ``counts`` (scenes,) int64 rows a scene. It takes a load or two
    a scene, from the cache, and spares the host reading the counts.
    """
    begin = tl.zeros_like(row)
    end = tl.zeros_like(row)
    row_at = 0
    other_at = 0
    for scene in range(scenes):
        rows = tl.load(counts + scene).to(tl.int32)
        others = tl.load(other_counts + scene).to(tl.int32)
        here = (row >= row_at) & (row < row_at + rows)
        begin = tl.where(here, other_at, begin)
        end = tl.where(here, other_at + others, end)
        row_at += rows
        other_at += others
    return begin, end
