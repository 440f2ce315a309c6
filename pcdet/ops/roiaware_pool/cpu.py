"""Points of boxes and of their cells as CPU kernels: each box looks at the part of a grid seen from above around it."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.bev_grid import bev_grid
from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.points_in_boxes.reference import box_table
from pcdet.ops.roiaware_pool import reference
from pcdet.ops.roiaware_pool.reference import MARGIN, cell_table
from pcdet.ops.threads import parallel_for

FEW = 32  # rows that are sorted by insertion
BOXES = 8  # boxes a piece of work covers
CELL = 0.5  # metres
SLACK = 1e-6  # metres; a bounding rectangle is rounded


@device_function
def _cell_range(value, reach, low, size, count):
    """The first and the last cell along one axis that ``value`` +- ``reach`` meets; none for a NaN."""
    first, last = np.floor((value - reach - low) / size), np.floor((value + reach - low) / size)
    if not (last >= 0.0 and first < count):
        return 0, -1
    return np.int64(max(first, 0.0)), np.int64(min(last, count - 1.0))


@device_function
def _is_inside(xyz, place, table, m):
    dx, dy, dz = xyz[place, 0] - table[m, 0], xyz[place, 1] - table[m, 1], xyz[place, 2] - table[m, 2]
    in_x = abs(dx * table[m, 6] + dy * table[m, 7]) <= table[m, 3]
    in_y = abs(dy * table[m, 6] - dx * table[m, 7]) <= table[m, 4]
    return in_x & in_y & (abs(dz) <= table[m, 5])


@device_function
def _cells_around(grid, table, m):
    """i0, i1, j0, j1: the cells of the grid that box m may meet."""
    cos, sin = abs(table[m, 6]), abs(table[m, 7])
    x_reach = cos * table[m, 3] + sin * table[m, 4] + SLACK
    y_reach = sin * table[m, 3] + cos * table[m, 4] + SLACK
    i0, i1 = _cell_range(table[m, 0], x_reach, grid.low[0], grid.size, grid.dims[0])
    j0, j1 = _cell_range(table[m, 1], y_reach, grid.low[1], grid.size, grid.dims[1])
    return (i0, i1, j0, j1) if j0 <= j1 else (0, -1, 0, -1)


@Kernel
def _count_nearby(grid, table, starts):
    """Where each box may begin to write: it needs no more places than there are points in the cells around it."""
    starts[0] = 0
    for m in range(table.shape[0]):
        starts[m + 1] = starts[m]
        i0, i1, j0, j1 = _cells_around(grid, table, m)
        for i in range(i0, i1 + 1):
            starts[m + 1] += grid.start[i * grid.dims[1] + j1 + 1] - grid.start[i * grid.dims[1] + j0]


@Kernel
def _rows_in_boxes(first, last, grid, table, starts, rows, counts):
    order, xyz = grid.order, grid.xyz
    for m in range(first, last):
        count, begin = 0, starts[m]
        i0, i1, j0, j1 = _cells_around(grid, table, m)
        for i in range(i0, i1 + 1):
            row = i * grid.dims[1]
            for place in range(grid.start[row + j0], grid.start[row + j1 + 1]):
                rows[begin + count] = order[place]  # overwritten unless counted: no branch to predict
                count += _is_inside(xyz, place, table, m)
        counts[m] = count


def rows_in_boxes(points: Tensor, boxes: Tensor, margin: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N, 3+), (M, 7+) -> rows (K,), where those of each box begin (M,), and how many they are (M,), int64.

    The rows of a box are in any order, and there are gaps between boxes. Membership as in
    ``pcdet.ops.points_in_boxes``, for coordinates in float32.
    """
    grid, table = bev_grid(points[:, :3].float().contiguous().numpy(), CELL), box_table(boxes, margin).numpy()
    starts, counts = np.empty(len(boxes) + 1, dtype=np.int64), np.empty(len(boxes), dtype=np.int64)
    _count_nearby(grid, table, starts)
    rows = np.empty(starts[-1], dtype=np.int32)
    parallel_for(_rows_in_boxes, len(boxes), grid, table, starts, rows, counts, chunk=BOXES)
    return rows, starts[:-1], counts


@device_function
def _along(value, half, step, cells):
    """The cell along one axis; the first or the last in a box without extent, where a division would raise."""
    if not value + half > 0:
        return 0
    return np.int64(min((value + half) / step, np.float32(cells - 1))) if step > 0 else cells - 1


@device_function
def _box(table, m):
    """Row m as numbers: an array would cost more to hand over, for every point."""
    centre, turn = (table[m, 0], table[m, 1], table[m, 2]), (table[m, 3], table[m, 4])
    return centre, turn, (table[m, 5], table[m, 6], table[m, 7]), (table[m, 8], table[m, 9], table[m, 10])


@device_function
def _cell(px, py, pz, box, x_cells, y_cells, z_cells):
    (cx, cy, cz), (cos, sin), half, step = box
    dx, dy = px - cx, py - cy
    x = _along(dx * cos + dy * -sin, half[0], step[0], x_cells)
    y = _along(dx * sin + dy * cos, half[1], step[1], y_cells)
    return (x * y_cells + y) * z_cells + _along(pz - cz, half[2], step[2], z_cells)


@device_function
def _sort(rows, first, last):
    """Sort a part of the rows; most cells hold a few."""
    if last - first > FEW:
        rows[first:last].sort()
        return
    for k in range(first + 1, last):
        row, place = rows[k], k
        while place > first and rows[place - 1] > row:
            rows[place] = rows[place - 1]
            place -= 1
        rows[place] = row


@Kernel
def _sort_by_cell(first, last, rows, starts, counts, points, table, shape, kept, out, flat):
    """Write the rows of box m by cell, ascending in each, and the flat cells of those that a cell keeps."""
    x_cells, y_cells, z_cells = shape
    cells = x_cells * y_cells * z_cells
    ends = np.empty(cells + 1, dtype=np.int64)
    for m in range(first, last):
        low, box, home = starts[m], _box(table, m), np.empty(counts[m], dtype=np.int64)
        ends[:] = 0
        for k in range(counts[m]):
            n = rows[low + k]
            home[k] = _cell(points[n, 0], points[n, 1], points[n, 2], box, x_cells, y_cells, z_cells)
            ends[home[k] + 1] += 1
        for c in range(cells):
            ends[c + 1] += ends[c]
        for k in range(counts[m]):
            out[low + ends[home[k]]] = rows[low + k]
            ends[home[k]] += 1
        begin = 0
        for c in range(cells):
            if ends[c] > begin:
                _sort(out, low + begin, low + ends[c])
                flat[low + begin : low + min(ends[c], begin + kept)] = m * cells + c
                begin = ends[c]


def assign(
    rois: Tensor,
    points: Tensor,
    roi_counts: Sequence[int],
    point_counts: Sequence[int],
    out_size: Sequence[int],
    kept: int,
) -> tuple[Tensor, Tensor]:
    """-> points (K,), flat cells (K,) ascending, int64; at most ``kept`` points of a cell."""
    parts, first_roi, first_point = [np.empty((2, 0), dtype=np.int64)], 0, 0
    for some_rois, some_points in zip(rois.split(list(roi_counts)), points.split(list(point_counts)), strict=True):
        rows, cell = _assign_scene(some_rois, some_points, out_size, kept)
        parts.append(np.stack([rows + first_point, cell + first_roi * math.prod(out_size)]))
        first_roi, first_point = first_roi + len(some_rois), first_point + len(some_points)
    return tuple(torch.from_numpy(column) for column in (np.concatenate(row) for row in zip(*parts, strict=True)))


def _assign_scene(rois: Tensor, points: Tensor, out_size: Sequence[int], kept: int) -> tuple[np.ndarray, np.ndarray]:
    assert len(rois) * math.prod(out_size) < 2**31  # cells are counted in int32
    rows, starts, counts = rows_in_boxes(points, rois, MARGIN)
    cloud, table = points[:, :3].float().contiguous().numpy(), cell_table(rois, out_size).numpy()
    options = (tuple(int(size) for size in out_size), kept)
    out, flat = np.empty_like(rows), np.full_like(rows, -1)
    parallel_for(_sort_by_cell, len(rois), rows, starts, counts, cloud, table, *options, out, flat, chunk=BOXES)
    stays = flat >= 0
    return out[stays].astype(np.int64), flat[stays].astype(np.int64)


filled_cells = partial(reference.filled_cells, assign=assign)
