"""Vector pooling as Triton kernels: the neighbours of each centre are listed first, then seen from its grid.

PV-RCNN++, B = 2: 2 x 4096 key points with 27 cells against 18,000 points or voxels of each scene: 147 M pairs of 9
operations, 1.3 GFLOP, 90 us for a card of 15 TFLOP/s without fused products, once for each pool. A centre has up to
1000 neighbours; the lists take 33 MB, of which what is found is written and read. Each of a centre's 27 cells then
looks at all of them: at 300 a centre 66 M pairs. To look at the cells while searching would cost 27 times the search,
since neighbours are spread over all tiles of points.

The members of cells (RoI grid: 2 x 128 x 216 places against 4096 key points, 453 M pairs) are found by the same search.
Where the first of each cell is wanted, an atomic minimum of row numbers finds it: its result does not depend on the
order. Where all are, they are counted, their number is read by the host, which needs it for the result, and they are
written in order and sorted by cell.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.three_nn.triton import take_nearest
from pcdet.ops.triton import block_of, launch, size_on_host, span_of_scene

NO_CAP = 1 << 30


def three_nn(
    support: Tensor,  # (N, 3)
    counts: Tensor,
    centres: Tensor,  # (M, 3)
    centre_counts: Tensor,
    grid_centres: Tensor,  # (M, T, 3)
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """-> squared distances (M, T, 3), rows (M, T, 3) int64."""
    support = support.contiguous()
    cap = max(1, min(cap, len(support)))
    rows = counts.new_empty(len(centres), cap, dtype=torch.int32)
    scenes = (support, counts, centres, centre_counts)
    found = _search(*scenes, radius, cap, ball, rows=rows)
    squared = torch.empty_like(grid_centres, memory_format=torch.contiguous_format)
    index = torch.empty_like(squared, dtype=torch.int64)
    cells = grid_centres.shape[1]
    block = block_of(cells, 4, 32)
    launch(
        nearest_kernel,
        (len(centres), triton.cdiv(cells, block)),
        *(support, rows, found, cap, grid_centres.contiguous(), cells, squared, index),
        BLOCK_T=block,
        BLOCK_N=32,
    )
    return squared, index


def all_members(
    support: Tensor,
    counts: Tensor,
    centres: Tensor,
    centre_counts: Tensor,
    num_voxels: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """The rows of the first ``cap`` neighbours of each centre (all if -1), by cell. -> (K,), starts (M * T + 1,)."""
    scenes = (support, counts, centres, centre_counts)
    cap = cap if cap > 0 else NO_CAP
    found = _search(*scenes, radius, cap, ball)
    end = found.cumsum(0, dtype=torch.int64)  # (M,)
    total = size_on_host(end[-1]) if len(end) else 0
    rows = counts.new_empty(total, dtype=torch.int32)
    cell = counts.new_empty(total)
    _search(*scenes, radius, cap, ball, begin=end - found, rows=rows, cell=cell, num_voxels=num_voxels)
    cell, order = cell.sort(stable=True)
    cells = len(centres) * num_voxels[0] * num_voxels[1] * num_voxels[2]
    return rows[order].long(), torch.searchsorted(cell, torch.arange(cells + 1, device=cell.device))


def first_members(
    support: Tensor,
    counts: Tensor,
    centres: Tensor,
    centre_counts: Tensor,
    num_voxels: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """The first row of each cell, of the ``cap`` cells that are filled first. -> (K,), starts (M * T + 1,)."""
    cells = num_voxels[0] * num_voxels[1] * num_voxels[2]
    n = len(support)
    first = counts.new_full((len(centres), cells), n, dtype=torch.int32)
    _search(support, counts, centres, centre_counts, radius, NO_CAP, ball, first=first, num_voxels=num_voxels)
    kept = first < n  # (M, T)
    if 0 <= cap < cells:
        kept &= first.argsort(dim=1).argsort(dim=1) < cap  # rows differ, so there are no ties among filled cells
    kept = kept.flatten()
    start = torch.cat([counts.new_zeros(1), kept.cumsum(0)])  # (M * T + 1,)
    total = size_on_host(start[-1])
    rows = counts.new_empty(total + 1)  # the last place takes the cells that are not kept
    place = torch.where(kept, start[:-1], total).clamp_(max=total)
    return rows.scatter_(0, place, first.flatten().long())[:total], start


def _search(
    support: Tensor,
    counts: Tensor,
    centres: Tensor,
    centre_counts: Tensor,
    radius: float,
    cap: int,
    ball: bool,
    *,
    begin: Tensor | None = None,  # (M,) where a centre's neighbours begin in rows; else each has room for ``cap``
    rows: Tensor | None = None,  # written: row of each neighbour
    cell: Tensor | None = None,  # written: its cell, numbered over all centres
    first: Tensor | None = None,  # (M, T) lowered to the first row in each cell
    num_voxels: Sequence[int] = (1, 1, 1),
) -> Tensor:
    """-> how many neighbours each centre has (M,) int32, at most ``cap``."""
    found = counts.new_empty(len(centres), dtype=torch.int32)
    reach = np.float32(radius)
    widths = [float(reach * np.float32(2) / np.float32(number)) for number in num_voxels]
    block = 16
    launch(
        search_kernel,
        (triton.cdiv(len(centres), block),),
        *(support.contiguous(), counts, len(support), centres.contiguous(), centre_counts, len(centres)),
        *(len(counts), float(reach), cap, found, begin, rows, cell, first, *num_voxels, *widths),
        BALL=ball,
        BLOCK_M=block,
        BLOCK_N=64,
    )
    return found


@triton.jit(do_not_specialize=["num_support", "num_centres", "scenes", "cap", "voxels_x", "voxels_y", "voxels_z"])
def search_kernel(
    support,  # (N, 3)
    counts,  # (B,)
    num_support,
    centres,  # (M, 3)
    centre_counts,  # (B,)
    num_centres,
    scenes,
    radius,
    cap,
    found_of,  # (M,), written
    begin_of,  # (M,) or None
    rows,  # written, or None
    cell_of,  # written, or None
    first_of,  # (M, T) lowered, or None
    voxels_x,
    voxels_y,
    voxels_z,
    width_x,
    width_y,
    width_z,
    BALL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = m < num_centres
    begin, end = span_of_scene(m, centre_counts, counts, scenes)
    end = tl.where(is_row, tl.minimum(end, num_support), 0)
    x = tl.load(centres + m * 3, mask=is_row, other=0.0)
    y = tl.load(centres + m * 3 + 1, mask=is_row, other=0.0)
    z = tl.load(centres + m * 3 + 2, mask=is_row, other=0.0)
    out = m.to(tl.int64) * cap
    if begin_of is not None:
        out = tl.load(begin_of + m, mask=is_row, other=0)
    found = tl.zeros([BLOCK_M], tl.int32)
    cells = voxels_x * voxels_y * voxels_z
    low = tl.min(tl.where(begin < end, begin, num_support), 0)
    high = tl.max(end, 0)
    while (low < high) & (tl.min(tl.where(begin < end, found, cap), 0) < cap):
        n = low + tl.arange(0, BLOCK_N)
        is_point = n < high
        dx = tl.load(support + n * 3, mask=is_point, other=0.0)[None, :] - x[:, None]
        dy = tl.load(support + n * 3 + 1, mask=is_point, other=0.0)[None, :] - y[:, None]
        dz = tl.load(support + n * 3 + 2, mask=is_point, other=0.0)[None, :] - z[:, None]
        inside = (n[None, :] >= begin[:, None]) & (n[None, :] < end[:, None])
        if BALL:
            inside &= dx * dx + dy * dy + dz * dz <= radius * radius
        else:
            inside &= (tl.abs(dx) <= radius) & (tl.abs(dy) <= radius) & (tl.abs(dz) <= radius)
        held = tl.sum(inside.to(tl.int32), 1)
        if tl.max(held, 0) > 0:
            place = found[:, None] + tl.cumsum(inside.to(tl.int32), 1) - 1
            inside &= place < cap
            row = n[None, :] + tl.zeros_like(place)
            if rows is not None:
                tl.store(rows + out[:, None] + place, row, mask=inside)
            if (cell_of is not None) or (first_of is not None):
                at_x = tl.floor(tl.div_rn(dx + radius, tl.zeros_like(dx) + width_x)).to(tl.int32)
                at_y = tl.floor(tl.div_rn(dy + radius, tl.zeros_like(dy) + width_y)).to(tl.int32)
                at_z = tl.floor(tl.div_rn(dz + radius, tl.zeros_like(dz) + width_z)).to(tl.int32)
                flat = (at_x * voxels_y + at_y) * voxels_z + at_z
                flat = tl.minimum(tl.maximum(flat, 0), cells - 1)
                number = m.to(tl.int64)[:, None] * cells + flat
                if cell_of is not None:
                    tl.store(cell_of + out[:, None] + place, number, mask=inside)
                if first_of is not None:
                    tl.atomic_min(first_of + number, row, mask=inside, sem="relaxed")
            found += held
        low += BLOCK_N
    tl.store(found_of + m, tl.minimum(found, cap), mask=is_row)


@triton.jit(do_not_specialize=["cap", "cells"])
def nearest_kernel(
    support,  # (N, 3)
    rows,  # (M, cap) neighbours of each centre
    found_of,  # (M,) how many
    cap,
    grid_centres,  # (M, T, 3)
    cells,
    squared,  # (M, T, 3), written
    index,  # (M, T, 3), written
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    is_cell = t < cells
    out = (m * cells + t) * 3
    x = tl.load(grid_centres + out, mask=is_cell, other=0.0)
    y = tl.load(grid_centres + out + 1, mask=is_cell, other=0.0)
    z = tl.load(grid_centres + out + 2, mask=is_cell, other=0.0)
    a = tl.full([BLOCK_T], float("inf"), tl.float32)
    b, c = a, a
    at_a = tl.full([BLOCK_T], -1, tl.int32)
    at_b, at_c = at_a, at_a
    found = tl.load(found_of + m)
    for low in range(0, found, BLOCK_N):
        n = low + tl.arange(0, BLOCK_N)
        row = tl.load(rows + m * cap + n, mask=n < found, other=-1)
        dx = tl.load(support + row * 3, mask=n < found, other=0.0)[None, :] - x[:, None]
        dy = tl.load(support + row * 3 + 1, mask=n < found, other=0.0)[None, :] - y[:, None]
        dz = tl.load(support + row * 3 + 2, mask=n < found, other=0.0)[None, :] - z[:, None]
        near = dx * dx + dy * dy + dz * dz
        near = tl.where((n < found)[None, :] & (near < float("inf")), near, float("inf"))  # drops NaN as well
        at = row[None, :] + tl.zeros([BLOCK_T, BLOCK_N], tl.int32)
        a, b, c, at_a, at_b, at_c = take_nearest(near, at, a, b, c, at_a, at_b, at_c, BLOCK_N)
    at_b, at_c = tl.where(b < float("inf"), at_b, at_a), tl.where(c < float("inf"), at_c, at_a)
    b, c = tl.where(b < float("inf"), b, a), tl.where(c < float("inf"), c, a)
    tl.store(squared + out, a, mask=is_cell)
    tl.store(squared + out + 1, b, mask=is_cell)
    tl.store(squared + out + 2, c, mask=is_cell)
    tl.store(index + out, at_a.to(tl.int64), mask=is_cell)
    tl.store(index + out + 1, at_b.to(tl.int64), mask=is_cell)
    tl.store(index + out + 2, at_c.to(tl.int64), mask=is_cell)
