"""Three nearest neighbours and interpolation as Triton kernels.

PointRCNN's finest level, B = 2: 16,384 points a scene against 4096 known ones, 134 M pairs of 9 operations, 1.2 GFLOP:
80 us for a card of 15 TFLOP/s without fused products. The known points come from the L2 cache once for every 16 query
points, 100 MB; 36 bytes a query point are written. A grid would have to be built first and would widen its search where
the known points are sparse, so every pair is looked at. Tiles come in index order and only a strictly smaller square
displaces one that is held, so the lower index wins ties; most tiles hold nothing nearer and cost one minimum.

The interpolation reads 3 rows of 512 channels from a table of 8 MB that stays in the cache, and writes one: 67 MB for
32,768 points. Its adjoint is the weighted form of the sorted sum in ``grouping``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.grouping.triton import sum_weighted_rows
from pcdet.ops.triton import block_of, launch, span_of_scene


def three_nn_stack(
    unknown: Tensor, unknown_counts: Tensor, known: Tensor, known_counts: Tensor
) -> tuple[Tensor, Tensor]:
    """(N, 3), (M, 3) float32 -> squared distances (N, 3) float32, global indices (N, 3) int64."""
    square = unknown.new_empty(len(unknown), 3)
    index = unknown.new_empty(len(unknown), 3, dtype=torch.int64)
    block = 16
    launch(
        nearest_kernel,
        (triton.cdiv(len(unknown), block),),
        *(unknown.contiguous(), unknown_counts, len(unknown), known.contiguous(), known_counts, len(known)),
        *(square, index, len(known_counts)),
        BLOCK_M=block,
        BLOCK_N=64,
    )
    return square, index


@triton.jit
def take_nearest(square, n, a, b, c, at_a, at_b, at_c, BLOCK_N: tl.constexpr):
    """Move what is nearer than the third nearest so far from a tile (M, N) with the indices ``n`` (M, N) into the
    three ascending squares ``a b c`` (M,) and their indices. Of equal squares the one that is held stays first."""
    column = tl.arange(0, BLOCK_N)[None, :]
    nearest, place = tl.min(square, 1, return_indices=True, return_indices_tie_break_left=True)
    while tl.max((nearest < c).to(tl.int32), 0) > 0:
        at = tl.sum(tl.where(column == place[:, None], n, 0), 1)
        first, second, third = nearest < a, nearest < b, nearest < c
        c, at_c = tl.where(second, b, tl.where(third, nearest, c)), tl.where(second, at_b, tl.where(third, at, at_c))
        b, at_b = tl.where(first, a, tl.where(second, nearest, b)), tl.where(first, at_a, tl.where(second, at, at_b))
        a, at_a = tl.where(first, nearest, a), tl.where(first, at, at_a)
        square = tl.where(column == place[:, None], float("inf"), square)
        nearest, place = tl.min(square, 1, return_indices=True, return_indices_tie_break_left=True)
    return a, b, c, at_a, at_b, at_c


@triton.jit(do_not_specialize=["num_unknown", "num_known", "scenes"])
def nearest_kernel(
    unknown,  # (N, 3)
    unknown_counts,  # (B,)
    num_unknown,
    known,  # (M, 3)
    known_counts,  # (B,)
    num_known,
    square,  # (N, 3), written
    index,  # (N, 3), written
    scenes,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = row < num_unknown
    begin, end = span_of_scene(row, unknown_counts, known_counts, scenes)
    end = tl.where(is_row, tl.minimum(end, num_known), 0)
    x = tl.load(unknown + row * 3, mask=is_row, other=0.0)
    y = tl.load(unknown + row * 3 + 1, mask=is_row, other=0.0)
    z = tl.load(unknown + row * 3 + 2, mask=is_row, other=0.0)
    a = tl.full([BLOCK_M], float("inf"), tl.float32)
    b, c = a, a
    at_a = tl.where(begin < end, begin, 0)
    at_b, at_c = at_a, at_a
    low = tl.min(tl.where(begin < end, begin, num_known), 0)
    high = tl.max(end, 0)
    for start in range(low, high, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        is_point = n < high
        dx = tl.load(known + n * 3, mask=is_point, other=0.0)[None, :] - x[:, None]
        dy = tl.load(known + n * 3 + 1, mask=is_point, other=0.0)[None, :] - y[:, None]
        dz = tl.load(known + n * 3 + 2, mask=is_point, other=0.0)[None, :] - z[:, None]
        near = dx * dx + dy * dy + dz * dz
        of_scene = (n[None, :] >= begin[:, None]) & (n[None, :] < end[:, None])
        near = tl.where(of_scene & (near < float("inf")), near, float("inf"))  # drops NaN as well
        at = n[None, :] + tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
        a, b, c, at_a, at_b, at_c = take_nearest(near, at, a, b, c, at_a, at_b, at_c, BLOCK_N)
    out = row.to(tl.int64) * 3
    tl.store(square + out, a, mask=is_row)
    tl.store(square + out + 1, b, mask=is_row)
    tl.store(square + out + 2, c, mask=is_row)
    tl.store(index + out, at_a.to(tl.int64), mask=is_row)
    tl.store(index + out + 1, at_b.to(tl.int64), mask=is_row)
    tl.store(index + out + 2, at_c.to(tl.int64), mask=is_row)


def interpolate(features: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """(M, C), (N, 3), (N, 3) -> (N, C)."""
    rows, channels = len(index), features.shape[1]
    out = features.new_empty(rows, channels)
    block = block_of(channels, 16, 128)
    tall = 1024 // block
    launch(
        interpolate_kernel,
        (triton.cdiv(rows, tall), triton.cdiv(channels, block)),
        *(features.contiguous(), index.contiguous(), weight.contiguous(), out, rows, channels),
        DOUBLE=torch.promote_types(features.dtype, weight.dtype) == torch.float64,
        BLOCK_N=tall,
        BLOCK_C=block,
    )
    return out


@triton.jit(do_not_specialize=["rows"])
def interpolate_kernel(
    features,  # (M, C)
    index,  # (N, 3)
    weight,  # (N, 3)
    out,  # (N, C), written
    rows,
    channels,
    DOUBLE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_row = n < rows
    held = is_row[:, None] & (c < channels)[None, :]
    dtype: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    total = tl.zeros([BLOCK_N, BLOCK_C], dtype)
    for k in tl.static_range(3):
        row = tl.load(index + n * 3 + k, mask=is_row, other=0)
        share = tl.load(weight + n * 3 + k, mask=is_row, other=0.0).to(dtype)
        value = tl.load(features + (row * channels)[:, None] + c[None, :], mask=held, other=0.0).to(dtype)
        total += value * share[:, None]
    place = (n.to(tl.int64) * channels)[:, None] + c[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=held)


def spread(values: Tensor, index: Tensor, weight: Tensor, m: int) -> Tensor:
    """The adjoint of :func:`interpolate`. (N, C), (N, 3), (N, 3) -> (m, C)."""
    return sum_weighted_rows(values, index.flatten(), weight, m)
