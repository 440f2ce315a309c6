"""Ball query as a Triton kernel: a tile of centres against tiles of points, in index order, until all balls are full.

PV-RCNN, B = 2. Raw points: 2 x 2048 key points against 18,000 points a scene, twice (radius 0.4 and 0.8, 16
neighbours): 74 M pairs of 9 operations, 0.7 GFLOP. RoI grid: 2 x 128 x 216 places against 2048 key points, twice:
113 M pairs, 1 GFLOP. A card of 15 TFLOP/s without fused products needs 45 and 70 us for them; the bytes (the points
from the L2 cache once for every 16 centres, 55 MB; the indices, 128 bytes a centre, 7 MB for the RoI grid) cost less.
A grid over the points would save nine tenths of the pairs, but building one takes a sort and five launches of some
microseconds each and then a gather that is not coalesced: it would win from about 10^9 pairs on, which no model here
reaches. So the search is brute force, the scan for the places of the neighbours within the result runs only in tiles
that hold one, and a tile of centres stops when its balls are full, after a few tiles where the radius is large.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.triton import block_of, launch, span_of_scene


def query(points: Tensor, centres: Tensor, radius: float, num_samples: int) -> tuple[Tensor, Tensor]:
    """(B, N, 3), (B, S, 3) float32 -> indices (B, S, G), counts (B, S) int64."""
    batch, n = points.shape[:2]
    flat = points.reshape(batch * n, 3), centres.reshape(-1, 3)
    index, count = _query(flat[0], None, flat[1], None, (n, centres.shape[1]), radius, num_samples)
    return index.view(*centres.shape[:2], num_samples), count.view(centres.shape[:2])


def query_stack(
    points: Tensor, counts: Tensor, centres: Tensor, centre_counts: Tensor, radius: float, num_samples: int
) -> tuple[Tensor, Tensor]:
    """(N, 3), (M, 3) float32 -> global indices (M, G), counts (M,) int64."""
    return _query(points, counts, centres, centre_counts, (1, 1), radius, num_samples)


def _query(
    points: Tensor,
    counts: Tensor | None,
    centres: Tensor,
    centre_counts: Tensor | None,
    equal: tuple[int, int],  # points and centres of each scene, where the counts are None
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    index = centres.new_empty(len(centres), num_samples, dtype=torch.int64)
    count = centres.new_empty(len(centres), dtype=torch.int64)
    block = 16
    launch(
        query_kernel,
        (triton.cdiv(len(centres), block),),
        *(points.contiguous(), counts, len(points), equal[0]),
        *(centres.contiguous(), centre_counts, len(centres), equal[1]),
        *(index, count, 0 if counts is None else len(counts), radius, num_samples),
        EQUAL=counts is None,
        BLOCK_M=block,
        BLOCK_N=64,
        BLOCK_G=block_of(num_samples, 1, 32),
    )
    return index, count


@triton.jit(do_not_specialize=["num_points", "points_of_each", "num_centres", "centres_of_each", "scenes"])
def query_kernel(
    points,  # (N, 3)
    counts,  # (B,), or None where each scene has the same number
    num_points,
    points_of_each,
    centres,  # (M, 3)
    centre_counts,
    num_centres,
    centres_of_each,
    index,  # (M, G), written
    count,  # (M,), written
    scenes,
    radius,
    num_samples,
    EQUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = row < num_centres
    if EQUAL:  # indices count from each scene's first point
        begin = row // centres_of_each * points_of_each
        end = begin + points_of_each
        zero = begin
    else:
        begin, end = span_of_scene(row, centre_counts, counts, scenes)
        zero = tl.zeros_like(begin)
    end = tl.where(is_row, tl.minimum(end, num_points), 0)
    x = tl.load(centres + row * 3, mask=is_row)
    y = tl.load(centres + row * 3 + 1, mask=is_row)
    z = tl.load(centres + row * 3 + 2, mask=is_row)
    found = tl.zeros([BLOCK_M], tl.int32)
    first = tl.where(begin < end, begin, zero)  # stands in an empty ball
    low = tl.min(tl.where(begin < end, begin, num_points), 0)
    high = tl.max(end, 0)
    out = index + row.to(tl.int64) * num_samples
    while (low < high) & (tl.min(tl.where(begin < end, found, num_samples), 0) < num_samples):
        n = low + tl.arange(0, BLOCK_N)
        is_point = n < high
        dx = tl.load(points + n * 3, mask=is_point)[None, :] - x[:, None]
        dy = tl.load(points + n * 3 + 1, mask=is_point)[None, :] - y[:, None]
        dz = tl.load(points + n * 3 + 2, mask=is_point)[None, :] - z[:, None]
        of_scene = (n[None, :] >= begin[:, None]) & (n[None, :] < end[:, None])
        inside = of_scene & (dx * dx + dy * dy + dz * dz < radius * radius)
        hits = inside.to(tl.int32)
        held = tl.sum(hits, 1)
        if tl.max(held, 0) > 0:
            place = found[:, None] + tl.cumsum(hits, 1) - 1
            shown = n[None, :] - zero[:, None] + tl.zeros_like(place)
            tl.store(out[:, None] + place, shown.to(tl.int64), mask=inside & (place < num_samples))
            nearest = tl.min(tl.where(inside, n[None, :], num_points), 1)
            first = tl.where((found == 0) & (held > 0), nearest, first)
            found += held
        low += BLOCK_N
    found = tl.minimum(found, num_samples)
    tl.store(count + row, found.to(tl.int64), mask=is_row)
    fill = (first - zero).to(tl.int64)
    for at in range(0, num_samples, BLOCK_G):
        place = at + tl.arange(0, BLOCK_G)
        rest = is_row[:, None] & (place[None, :] >= found[:, None]) & (place[None, :] < num_samples)
        tl.store(out[:, None] + place[None, :], fill[:, None] + tl.zeros_like(rest).to(tl.int64), mask=rest)
