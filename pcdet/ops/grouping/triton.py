"""The gradient of a gather as Triton kernels: the gradients are sorted by the row they go to, then summed in order.

PV-RCNN, B = 2, the RoI grid: 2 x 128 x 216 places with 16 neighbours each, K = 885,000 gradients of C = 128 floats, go
to n = 4096 rows. They must be read once, 453 MB; everything else is small: to sort the index takes some 8 passes over
7 MB, the sums fill 2 MB, additions are 0.1 GFLOP. A card of 2 TB/s needs 0.23 ms for it. Atomic additions read the
same bytes, but contend for the few rows that stand in empty balls, and their order changes from run to run.

So no atomics: a segment of the sorted order is cut into pieces of 256, since one row may own a third of all; each piece
is one program's partial sum, and a second kernel adds the pieces of a row. The result is the same on every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.grouping import reference
from pcdet.ops.triton import block_of, launch

PIECE = 256  # gradients that one program adds


def sum_rows(values: Tensor, index: Tensor, n: int) -> Tensor:
    """(K, C), (K,) int64 -> (n, C)."""
    if not values.is_floating_point():
        return reference.sum_rows(values, index, n)
    return sum_weighted_rows(values, index, None, n)


def sum_weighted_rows(
    values: Tensor,  # (K, C)
    index: Tensor,  # (K * T,) int64: T places of the result for each row of values
    weight: Tensor | None,  # (K * T,), or 1
    n: int,
) -> Tensor:
    """Row r of the result is the sum of weight times the row of values over all places where the index is r. -> (n, C)

    Added in order of the places, pieces of ``PIECE`` at a time, in float32 (float64 if values are).
    """
    channels, entries = values.shape[1], len(index)
    out = values.new_empty(n, channels)
    if entries == 0 or n == 0 or channels == 0:
        return out.zero_()
    index, order = index.sort(stable=True)
    start = torch.searchsorted(index, torch.arange(n + 1, device=index.device))  # (n + 1,)
    pieces_of = (start.diff() + PIECE - 1) // PIECE  # (n,)
    first_piece = torch.cat([start.new_zeros(1), pieces_of.cumsum(0)])  # (n + 1,)
    pieces = min(n, entries) + entries // PIECE  # at least as many as there are
    row = torch.searchsorted(first_piece[1:], torch.arange(pieces, device=index.device), right=True)
    accumulator = torch.float64 if values.dtype == torch.float64 else torch.float32
    partial = values.new_empty(pieces, channels, dtype=accumulator)
    block = block_of(channels, 16, 128)
    across = triton.cdiv(channels, block)
    launch(
        partial_kernel,
        (pieces, across),
        *(values.contiguous(), order, None if weight is None else weight.contiguous().flatten()),
        *(row, start, first_piece, partial, n, channels, entries // len(values)),
        PIECE=PIECE,
        BLOCK_K=4096 // block,
        BLOCK_C=block,
    )
    launch(total_kernel, (n, across), partial, first_piece, out, channels, BLOCK_K=2048 // block, BLOCK_C=block)
    return out


@triton.jit(do_not_specialize=["n"])
def partial_kernel(
    values,  # (K, C)
    order,  # (K * T,) places, sorted by the row of the result
    weight,  # (K * T,) or None
    row,  # (pieces,) row of the result that each piece belongs to; n for those that do not exist
    start,  # (n + 1,)
    first_piece,  # (n + 1,)
    partial,  # (pieces, C), written
    n,
    channels,
    places_of_each,
    PIECE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    piece = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    to = tl.load(row + piece)
    if to < n:
        first = tl.load(start + to) + (piece - tl.load(first_piece + to)) * PIECE
        last = tl.minimum(first + PIECE, tl.load(start + to + 1))
        total = tl.zeros([BLOCK_K, BLOCK_C], partial.dtype.element_ty)
        for at in range(0, PIECE, BLOCK_K):
            k = first + at + tl.arange(0, BLOCK_K)
            place = tl.load(order + k, mask=k < last, other=0)
            source = place // places_of_each * channels
            held = (k < last)[:, None] & (c < channels)[None, :]
            value = tl.load(values + source[:, None] + c[None, :], mask=held, other=0.0).to(total.dtype)
            if weight is not None:
                value *= tl.load(weight + place, mask=k < last, other=0.0).to(total.dtype)[:, None]
            total += value
        tl.store(partial + piece.to(tl.int64) * channels + c, tl.sum(total, 0), mask=c < channels)


@triton.jit
def total_kernel(
    partial,  # (pieces, C)
    first_piece,  # (n + 1,)
    out,  # (n, C), written
    channels,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.load(first_piece + row)
    last = tl.load(first_piece + row + 1)
    total = tl.zeros([BLOCK_K, BLOCK_C], partial.dtype.element_ty)
    for at in range(first, last, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        held = (k < last)[:, None] & (c < channels)[None, :]
        total += tl.load(partial + k[:, None] * channels + c[None, :], mask=held, other=0.0)
    value = tl.sum(total, 0).to(out.dtype.element_ty)
    tl.store(out + row.to(tl.int64) * channels + c, value, mask=c < channels)
