"""Points in boxes as CPU kernels, over blocks of points that stay in the cache for all boxes."""

import math

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.threads import parallel_for

BLOCK = 1024  # points
CHUNK = 8 * BLOCK  # points a piece of work covers
AT_ONCE = 64  # boxes a cell of the grid tells apart, a bit each
CELL = 2.0  # metres; cells are larger where boxes lie far apart
CELLS = 256  # at most, along each side of the grid
SLACK = 1e-3  # metres a box is widened by on the grid: far more than rounding
ONE = np.uint64(1)


@Kernel
def _box_table(boxes, margin):
    """``box_table`` of reference.py, which costs more than testing a scene's points when called once for it."""
    table = np.empty((boxes.shape[0], 8))
    for m in range(boxes.shape[0]):
        table[m, 0], table[m, 1], table[m, 2] = boxes[m, 0], boxes[m, 1], boxes[m, 2]
        table[m, 3] = np.float64(boxes[m, 3]) / 2.0 + margin
        table[m, 4] = np.float64(boxes[m, 4]) / 2.0 + margin
        table[m, 5] = np.float64(boxes[m, 5]) / 2.0
        heading = np.float64(boxes[m, 6])
        table[m, 6], table[m, 7] = math.cos(heading), math.sin(heading)
    return table


@device_function
def _load_block(points, start, stop):
    """(3, points) float64: each axis of some points as one run of numbers."""
    block = np.empty((3, stop - start))
    for n in range(stop - start):
        for axis in range(3):
            block[axis, n] = points[start + n, axis]
    return block


@device_function
def _inside_block(x, y, z, table, m, inside):
    """Write which points lie in box m; returns whether any does."""
    found = False  # no branch below, so that the loop becomes vector instructions
    for n in range(x.shape[0]):
        dx, dy, dz = x[n] - table[m, 0], y[n] - table[m, 1], z[n] - table[m, 2]
        in_x = abs(dx * table[m, 6] + dy * table[m, 7]) <= table[m, 3]
        in_y = abs(dy * table[m, 6] - dx * table[m, 7]) <= table[m, 4]
        inside[n] = in_x & in_y & (abs(dz) <= table[m, 5])
        found |= inside[n]
    return found


@Kernel
def _mask_of_points(start, stop, points, table, out):
    for low in range(start, stop, BLOCK):
        high = min(low + BLOCK, stop)
        block = _load_block(points, low, high)
        for m in range(table.shape[0]):
            _inside_block(block[0], block[1], block[2], table, m, out[m, low:high])


@Kernel
def _index_of_points(start, stop, points, table, out):
    inside = np.empty(BLOCK, dtype=np.bool_)
    for low in range(start, stop, BLOCK):
        high = min(low + BLOCK, stop)
        block = _load_block(points, low, high)
        out[low:high] = -1
        for m in range(table.shape[0] - 1, -1, -1):  # the lowest box writes last
            if _inside_block(block[0], block[1], block[2], table, m, inside):
                for n in range(high - low):
                    if inside[n]:
                        out[low + n] = m


@Kernel
def _any_of_points(start, stop, points, table, out):
    """Write which points lie in any row of the table, finite and at most AT_ONCE rows, beside those written before."""
    # The grid covers the boxes; a cell's bits are the boxes whose upright bounds, seen from above, touch it.
    reach = np.empty((table.shape[0], 2))
    low_x, low_y, high_x, high_y = np.inf, np.inf, -np.inf, -np.inf
    for m in range(table.shape[0]):
        half_x, half_y, cos, sin = table[m, 3], table[m, 4], abs(table[m, 6]), abs(table[m, 7])
        reach[m, 0], reach[m, 1] = half_x * cos + half_y * sin + SLACK, half_x * sin + half_y * cos + SLACK
        low_x, high_x = min(low_x, table[m, 0] - reach[m, 0]), max(high_x, table[m, 0] + reach[m, 0])
        low_y, high_y = min(low_y, table[m, 1] - reach[m, 1]), max(high_y, table[m, 1] + reach[m, 1])
    scale = 1.0 / max(CELL, (high_x - low_x) / CELLS, (high_y - low_y) / CELLS)  # cells a metre
    grid = np.zeros((np.int64((high_x - low_x) * scale) + 1, np.int64((high_y - low_y) * scale) + 1), dtype=np.uint64)
    for m in range(table.shape[0]):
        x, y, reach_x, reach_y = table[m, 0] - low_x, table[m, 1] - low_y, reach[m, 0], reach[m, 1]
        for i in range(np.int64(max(x - reach_x, 0.0) * scale), np.int64((x + reach_x) * scale) + 1):
            for j in range(np.int64(max(y - reach_y, 0.0) * scale), np.int64((y + reach_y) * scale) + 1):
                if i < grid.shape[0] and j < grid.shape[1]:
                    grid[i, j] |= ONE << np.uint64(m)
    for n in range(start, stop):
        x, y = np.float64(points[n, 0]), np.float64(points[n, 1])
        if not (x >= low_x and x <= high_x and y >= low_y and y <= high_y):  # a NaN is outside
            continue
        boxes, m = grid[np.int64((x - low_x) * scale), np.int64((y - low_y) * scale)], 0
        while boxes != 0:
            if boxes & ONE:
                dx, dy, dz = x - table[m, 0], y - table[m, 1], np.float64(points[n, 2]) - table[m, 2]
                in_x = abs(dx * table[m, 6] + dy * table[m, 7]) <= table[m, 3]
                in_y = abs(dy * table[m, 6] - dx * table[m, 7]) <= table[m, 4]
                if in_x and in_y and abs(dz) <= table[m, 5]:
                    out[n] = True
                    break
            boxes >>= ONE
            m += 1


def _array(points: Tensor) -> np.ndarray:
    """Only float32 and float64, contiguous: a kernel is compiled for each kind that it meets."""
    return (points if points.dtype == torch.float64 else points.float()).contiguous().numpy()


def box_table(boxes: Tensor, margin: float) -> np.ndarray:
    """(M, 7+) boxes -> (M, 8) float64 as in reference.py."""
    return _box_table(_array(boxes), float(margin))


def mask(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (M, N) bool."""
    out = np.empty((len(boxes), len(points)), dtype=np.bool_)
    parallel_for(_mask_of_points, len(points), _array(points), box_table(boxes, margin), out, chunk=CHUNK)
    return torch.from_numpy(out)


def index(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (N,) int64."""
    out = np.empty(len(points), dtype=np.int64)
    parallel_for(_index_of_points, len(points), _array(points), box_table(boxes, margin), out, chunk=CHUNK)
    return torch.from_numpy(out)


def any_box(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (N,) bool."""
    table = box_table(boxes, margin)
    holds = (table[:, 3:6] >= 0).all(axis=1)  # of the others, NaN or turned inside out, no point is inside
    if not np.isfinite(table[holds]).all():
        return mask(points, boxes, margin).any(dim=0)
    table, array, out = table[holds], _array(points), np.zeros(len(points), dtype=np.bool_)
    for m in range(0, len(table), AT_ONCE):
        parallel_for(_any_of_points, len(array), array, table[m : m + AT_ONCE], out, chunk=CHUNK)
    return torch.from_numpy(out)
