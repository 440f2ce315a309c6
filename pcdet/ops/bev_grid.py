"""Points sorted by the cells of a grid seen from above: kernels that search near a place visit few of them.

LiDAR clouds are flat, so that cells along z would separate little.
"""

from typing import NamedTuple

import numpy as np

from pcdet.ops.compile import Kernel

CELLS_PER_POINT = 2  # bounds the memory of a grid over a wide and sparse cloud


class BevGrid(NamedTuple):
    """Cell (i, j) covers ``low + size * (i, j)`` to ``low + size * (i + 1, j + 1)``; j runs fastest.

    A kernel that wants all points from (x0, y0) to (x1, y1) visits, for each i, the places ``start[i * dims[1] + j0]``
    to ``start[i * dims[1] + j1 + 1]``, with ``floor((x0 - low[0]) / size)`` and so on in float64. The division is
    monotonic: no point is lost to rounding. Points that are not finite are nowhere.
    """

    low: np.ndarray  # (2,) float64
    size: float  # metres
    dims: np.ndarray  # (2,) int64
    start: np.ndarray  # (X * Y + 1,) int64
    order: np.ndarray  # (N,) int32 rows of the points, cell after cell, ascending within one
    xyz: np.ndarray  # (N, 3) float32, the points in that order


@Kernel
def _bounds(points, low, high):
    low[:], high[:] = np.inf, -np.inf
    for n in range(points.shape[0]):
        x, y = points[n, 0], points[n, 1]
        if np.isfinite(x) and np.isfinite(y) and np.isfinite(points[n, 2]):
            low[0], high[0] = min(low[0], x), max(high[0], x)
            low[1], high[1] = min(low[1], y), max(high[1], y)


@Kernel
def _sort_by_cell(points, low, size, dims, start, order, xyz):
    """Counting sort; points that are not finite get the cell -1 and no place."""
    cells = np.empty(points.shape[0], dtype=np.int64)
    start[:] = 0
    for n in range(points.shape[0]):
        x, y = points[n, 0], points[n, 1]
        cells[n] = -1
        if np.isfinite(x) and np.isfinite(y) and np.isfinite(points[n, 2]):
            cells[n] = np.int64((x - low[0]) / size) * dims[1] + np.int64((y - low[1]) / size)
            start[cells[n] + 1] += 1
    for c in range(1, start.shape[0]):
        start[c] += start[c - 1]
    place = start.copy()
    for n in range(points.shape[0]):
        if cells[n] >= 0:
            p = place[cells[n]]
            order[p], xyz[p, 0], xyz[p, 1], xyz[p, 2] = n, points[n, 0], points[n, 1], points[n, 2]
            place[cells[n]] += 1


def bev_grid(
    points: np.ndarray,  # (N, 3+) float32
    size: float,
) -> BevGrid:
    """Sort points into cells of ``size`` metres, or wider ones where there would be more than two cells a point."""
    low, high = np.empty(2), np.empty(2)
    _bounds(points, low, high)
    if not (low <= high).all():  # no point
        low[:] = high[:] = 0.0
    limit = max(64, CELLS_PER_POINT * len(points))
    while True:
        dims = np.floor((high - low) / size) + 1
        if dims.prod() <= limit:
            break
        size *= 1.26
    dims = dims.astype(np.int64)
    start = np.empty(dims.prod() + 1, dtype=np.int64)
    order, xyz = np.empty(len(points), dtype=np.int32), np.empty((len(points), 3), dtype=np.float32)
    _sort_by_cell(points, low, float(size), dims, start, order, xyz)
    return BevGrid(low, float(size), dims, start, order, xyz)
