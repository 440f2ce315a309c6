"""Points of boxes and of their cells as CPU kernels: each box looks at the part of a grid seen from above around it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.bev_grid import bev_grid
from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.points_in_boxes.reference import box_table
from pcdet.ops.roiaware_pool.reference import MARGIN, cell_table
from pcdet.ops.threads import parallel_for

BOXES = 8  # boxes a piece of work covers
CELL = 1.0  # metres
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


@Kernel
def _rows_in_boxes(first, last, grid, table, starts, rows):
    """Write the ascending rows inside box m to ``rows`` from ``starts[m]`` on; only count them where ``rows`` is empty.

    The counts stand in ``starts[m + 1]`` then.
    """
    for m in range(first, last):
        cos, sin = abs(table[m, 6]), abs(table[m, 7])
        x_reach = cos * table[m, 3] + sin * table[m, 4] + SLACK
        y_reach = sin * table[m, 3] + cos * table[m, 4] + SLACK
        i0, i1 = _cell_range(table[m, 0], x_reach, grid.low[0], grid.size, grid.dims[0])
        j0, j1 = _cell_range(table[m, 1], y_reach, grid.low[1], grid.size, grid.dims[1])
        count = 0
        for i in range(i0, i1 + 1):
            row = i * grid.dims[1]
            for place in range(grid.start[row + j0], grid.start[row + j1 + 1]):
                if _is_inside(grid.xyz, place, table, m):
                    if rows.shape[0] > 0:
                        rows[starts[m] + count] = grid.order[place]
                    count += 1
        if rows.shape[0] == 0:
            starts[m + 1] = count
        else:
            rows[starts[m] : starts[m] + count].sort()


def rows_in_boxes(points: Tensor, boxes: Tensor, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """(N, 3+), (M, 7+) -> rows (K,), ascending in each box, and where those of each box begin (M + 1,), int64.

    Membership as in ``pcdet.ops.points_in_boxes``, for coordinates in float32.
    """
    grid = bev_grid(points[:, :3].float().contiguous().numpy(), CELL)
    starts = np.zeros(len(boxes) + 1, dtype=np.int64)
    shared = (grid, box_table(boxes, margin).numpy(), starts)
    parallel_for(_rows_in_boxes, len(boxes), *shared, np.empty(0, dtype=np.int64), chunk=BOXES)
    starts.cumsum(out=starts)
    rows = np.empty(starts[-1], dtype=np.int64)
    if len(rows):
        parallel_for(_rows_in_boxes, len(boxes), *shared, rows, chunk=BOXES)
    return rows, starts


@device_function
def _along(value, half, step, cells):
    """The cell along one axis, 0 for a NaN."""
    place = (value + half) / step
    return np.int64(min(place, np.float32(cells - 1))) if place > 0 else 0


@device_function
def _cell(points, n, table, m, shape):
    dx, dy, dz = points[n, 0] - table[m, 0], points[n, 1] - table[m, 1], points[n, 2] - table[m, 2]
    cos, sin = table[m, 3], table[m, 4]
    x = _along(dx * cos + dy * -sin, table[m, 5], table[m, 8], shape[0])
    y = _along(dx * sin + dy * cos, table[m, 6], table[m, 9], shape[1])
    z = _along(dz, table[m, 7], table[m, 10], shape[2])
    return (x * shape[1] + y) * shape[2] + z


@Kernel
def _sort_by_cell(first, last, rows, starts, points, table, shape, kept, cell, counts):
    """Sort the rows of box m by cell and write the cells, both from ``starts[m]`` on; ``counts[m]`` of them stay."""
    cells = shape[0] * shape[1] * shape[2]
    held = np.empty(cells + 1, dtype=np.int64)
    for m in range(first, last):
        low, number = starts[m], 0
        chosen = np.empty(starts[m + 1] - low, dtype=np.int64)
        home = np.empty(chosen.shape[0], dtype=np.int64)
        held[:] = 0
        for k in range(low, starts[m + 1]):
            c = _cell(points, rows[k], table, m, shape)
            if held[c + 1] < kept:
                held[c + 1] += 1
                chosen[number], home[number] = rows[k], c
                number += 1
        for c in range(cells):
            held[c + 1] += held[c]
        for k in range(number):
            place = low + held[home[k]]
            held[home[k]] += 1
            rows[place], cell[place] = chosen[k], home[k]
        cell[low + number : starts[m + 1]] = -1
        counts[m] = number


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
    rows, starts = rows_in_boxes(points, rois, MARGIN)
    cell, counts = np.empty_like(rows), np.empty(len(rois), dtype=np.int64)
    cloud, table = points[:, :3].float().contiguous().numpy(), cell_table(rois, out_size).numpy()
    options = (np.array(out_size, dtype=np.int64), kept)
    parallel_for(_sort_by_cell, len(rois), rows, starts, cloud, table, *options, cell, counts, chunk=BOXES)
    stays = cell >= 0
    return rows[stays], cell[stays] + np.arange(len(rois)).repeat(counts) * math.prod(out_size)
