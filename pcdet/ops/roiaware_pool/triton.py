"""Points of the cells of boxes on a GPU: a program a box, which looks at its scene's points in order.

At Part-A2's sizes, 128 boxes in each of 4 scenes against 16,000 points a scene, 12^3 cells a box: 8.2 M pairs of 12
float64 operations, twice (count, then fill): 0.2 GFLOP, a tenth of a millisecond where float64 runs at 1/64 of the
float32 rate, and 100 MB from the L2 cache. What is found is small: 150,000 points in boxes, 50,000 cells with points.
So the original's table of 128 places in each of 885,000 cells, 450 MB, is never made. The first pass counts the points
of each cell (3.5 MB), from which running sums tell all sizes and places; the host waits once, for three sizes. The
second pass lists the points box by box in their order, a stable sort by cell keeps that order, and each cell copies its
first points.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.points_in_boxes.triton import box_table, is_inside, load_point
from pcdet.ops.roiaware_pool.reference import MARGIN
from pcdet.ops.triton import launch, sizes_on_host

POINTS = 512  # four a thread
CELLS = 128


@triton.jit
def _along(value, half, step, cells):
    """The cell along one axis, as in ``reference.cell_of``."""
    cell = tl.div_rn(value + half, step)
    cell = tl.where(cell == cell, cell, 0.0)  # NaN where a box has no size
    return tl.minimum(tl.maximum(cell, 0.0), (cells - 1).to(tl.float32)).to(tl.int32)


@triton.jit
def _cell_of(points, row, inside, rois, turns, m, width, point_width, nx, ny, nz):
    """Flat cell of points in box ``m``, in float32 and in the order of the original."""
    base, box = points + row.to(tl.int64) * point_width, rois + m * width
    cos, sin = tl.load(turns + m * 2), tl.load(turns + m * 2 + 1)
    dx = tl.load(base, mask=inside, other=0.0).to(tl.float32) - tl.load(box).to(tl.float32)
    dy = tl.load(base + 1, mask=inside, other=0.0).to(tl.float32) - tl.load(box + 1).to(tl.float32)
    dz = tl.load(base + 2, mask=inside, other=0.0).to(tl.float32) - tl.load(box + 2).to(tl.float32)
    size_x, size_y = tl.load(box + 3).to(tl.float32), tl.load(box + 4).to(tl.float32)
    size_z = tl.load(box + 5).to(tl.float32)
    x = _along(dx * cos + dy * -sin, size_x / 2, tl.div_rn(size_x, nx.to(tl.float32)), nx)
    y = _along(dx * sin + dy * cos, size_y / 2, tl.div_rn(size_y, ny.to(tl.float32)), ny)
    return (x * ny + y) * nz + _along(dz, size_z / 2, tl.div_rn(size_z, nz.to(tl.float32)), nz)


SHAPE = ["width", "point_width", "nx", "ny", "nz"]


@triton.jit(do_not_specialize=SHAPE)
def _count_kernel(
    points, table, rois, turns, begins, ends, counts, width, point_width, nx, ny, nz, POINTS: tl.constexpr
):
    """Count the points in each cell of a box."""
    m = tl.program_id(0)
    end = tl.load(ends + m)
    counts += m.to(tl.int64) * nx * ny * nz
    for begin in range(tl.load(begins + m), end, POINTS):
        row = begin + tl.arange(0, POINTS)
        x, y, z = load_point(points, row, row < end, point_width)
        inside = is_inside(x, y, z, table, m)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            cell = _cell_of(points, row, inside, rois, turns, m, width, point_width, nx, ny, nz)
            tl.atomic_add(counts + cell, 1, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=SHAPE)
def _fill_kernel(
    points, table, rois, turns, begins, ends, totals, cells, rows, width, point_width, nx, ny, nz, POINTS: tl.constexpr
):
    """Write row and cell of the points in a box, in their order, behind those of the boxes before."""
    m = tl.program_id(0)
    end = tl.load(ends + m)
    first = m.to(tl.int64) * nx * ny * nz
    place = tl.load(totals + first - 1, mask=m > 0, other=0)
    for begin in range(tl.load(begins + m), end, POINTS):
        row = begin + tl.arange(0, POINTS)
        x, y, z = load_point(points, row, row < end, point_width)
        inside = is_inside(x, y, z, table, m)
        rank = tl.cumsum(inside.to(tl.int32), axis=0)
        cell = _cell_of(points, row, inside, rois, turns, m, width, point_width, nx, ny, nz)
        tl.store(cells + place + rank - 1, first + cell, mask=inside)
        tl.store(rows + place + rank - 1, row, mask=inside)
        place += tl.max(rank, axis=0)


@triton.jit(do_not_specialize=["cells", "kept"])
def _keep_kernel(counts, totals, kept_totals, numbers, rows, point, start, cell, cells, kept, CELLS: tl.constexpr):
    """Copy the first ``kept`` points of each cell that has any, and write where they begin and which cell it is."""
    c = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    count = tl.load(counts + c, mask=c < cells, other=0)
    held = tl.minimum(count, kept)
    source = tl.load(totals + c, mask=c < cells, other=0) - count
    target = tl.load(kept_totals + c, mask=c < cells, other=0) - held
    number = tl.load(numbers + c, mask=c < cells, other=1) - 1
    tl.store(start + number, target.to(tl.int64), mask=held > 0)
    tl.store(cell + number, c.to(tl.int64), mask=held > 0)
    for k in range(tl.max(held, axis=0)):
        row = tl.load(rows + source + k, mask=k < held, other=0)
        tl.store(point + target + k, row.to(tl.int64), mask=k < held)


def filled_cells(
    rois: Tensor,  # (M, 7+)
    points: Tensor,  # (N, 3+)
    roi_counts: Tensor,  # (B,)
    point_counts: Tensor,  # (B,)
    out_size: Sequence[int],
    kept: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> points (K,) cell after cell, where those of each cell begin (S + 1,), flat cells (S,) ascending; int64."""
    m, cells = len(rois), len(rois) * math.prod(out_size)
    if cells == 0 or len(points) == 0:
        none = torch.zeros(0, dtype=torch.int64, device=points.device)
        return none, none.new_zeros(1), none
    rois, points = rois.contiguous(), points.contiguous()
    heading = -rois[:, 6].float()
    turns = torch.stack([heading.cos(), heading.sin()], dim=1)
    boxes = (points, box_table(rois, MARGIN), rois, turns, *_spans(m, len(points), roi_counts, point_counts))
    sizes = (rois.shape[1], points.shape[1], *out_size)
    counts = torch.zeros(cells, dtype=torch.int32, device=points.device)
    launch(_count_kernel, (m,), *boxes, counts, *sizes, POINTS=POINTS)
    totals = counts.cumsum(0, dtype=torch.int32)
    kept_totals = counts.clamp(max=kept).cumsum(0, dtype=torch.int32)
    numbers = (counts > 0).cumsum(0, dtype=torch.int32)
    inside, stays, filled = sizes_on_host(torch.stack([totals[-1], kept_totals[-1], numbers[-1]]))
    keys = torch.empty(inside, dtype=torch.int64, device=points.device)
    rows = torch.empty(inside, dtype=torch.int32, device=points.device)
    launch(_fill_kernel, (m,), *boxes, totals, keys, rows, *sizes, POINTS=POINTS)
    rows = rows[keys.argsort(stable=True)]
    point, cell, start = (keys.new_empty(size) for size in (stays, filled, filled + 1))
    start[filled:].fill_(stays)
    tables = (counts, totals, kept_totals, numbers, rows, point, start, cell)
    launch(_keep_kernel, (triton.cdiv(cells, CELLS),), *tables, cells, kept, CELLS=CELLS)
    return point, start, cell


def _spans(m: int, n: int, roi_counts: Tensor, point_counts: Tensor) -> tuple[Tensor, Tensor]:
    """First point, and point after the last, of the scene of each box. (M,) int32 twice"""
    ends = point_counts.cumsum(0)
    box = torch.arange(m, device=ends.device)
    scene = torch.searchsorted(roi_counts.cumsum(0), box, right=True).clamp(max=len(ends) - 1)
    last = ends[scene]
    return (last - point_counts[scene]).clamp(0, n).int(), last.clamp(max=n).int()
