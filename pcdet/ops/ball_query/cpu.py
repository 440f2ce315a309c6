"""Ball query as a CPU kernel that chooses, for each centre, between two ways to the same answer.

Where a ball holds few points, the 27 cells of a grid around it are searched; where it holds many, a scan in index
order finds the first G soon.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.threads import parallel_for

CENTRES = 256  # centres a piece of work covers
SLACK = 1.001  # cells are a little wider than the radius, so that rounding cannot lose a neighbour
SPARE_CELLS = 10  # of a scene besides one a point: two entries of bookkeeping, and at least 8 cells
BALL_SHARE = 4.19 / 27  # part of the 27 cells' volume that the ball fills


@device_function
def _grid_geometry(points, radius, max_cells, geometry, dims):
    """Write the grid's corner x y z and cell size to ``geometry``, its cells along x, y, z to ``dims``."""
    geometry[:3] = np.inf
    high = np.full(3, -np.inf)
    for n in range(points.shape[0]):
        for axis in range(3):
            if np.isfinite(points[n, axis]):
                geometry[axis], high[axis] = min(geometry[axis], points[n, axis]), max(high[axis], points[n, axis])
    size = radius * SLACK
    for axis in range(3):
        if high[axis] < geometry[axis]:
            geometry[axis] = high[axis] = 0.0
        size = max(size, (high[axis] - geometry[axis]) / max_cells)
    while True:
        for axis in range(3):
            dims[axis] = np.int64((high[axis] - geometry[axis]) / size) + 1
        if float(dims[0]) * dims[1] * dims[2] <= max_cells:
            break
        size *= 1.26  # a cell of twice the volume
    geometry[3] = size


@device_function
def _first_cell(offsets, b):
    """Where the cells of scene ``b`` begin: each scene has as many as it has points, and some more."""
    return offsets[b] + SPARE_CELLS * b


@device_function
def _cell_along(value, low, size, count):
    """Cell of a coordinate, -2 or ``count + 1`` where it is far outside; a NaN is outside."""
    cell = np.floor((value - low) / size)
    if not cell >= -2.0:
        return -2
    return np.int64(min(cell, count + 1.0))


@device_function
def _fill_cells(points, geometry, dims, start, order, xyz):
    """Counting sort of the points by cell; within a cell they stay in index order. Points off the grid are left out."""
    cells = np.empty(points.shape[0], dtype=np.int64)
    start[:] = 0
    for n in range(points.shape[0]):
        cells[n] = 0
        for axis in range(2, -1, -1):
            place = _cell_along(points[n, axis], geometry[axis], geometry[3], dims[axis])
            if cells[n] < 0 or place < 0 or place >= dims[axis]:
                cells[n] = -1
            else:
                cells[n] = cells[n] * dims[axis] + place
        start[cells[n] + 2] += 1  # entry 1 counts those left out
    start[1] = 0
    for c in range(2, start.shape[0]):
        start[c] += start[c - 1]
    for n in range(points.shape[0]):
        if cells[n] >= 0:
            place = start[cells[n] + 1]
            order[place] = n
            xyz[place] = points[n]
            start[cells[n] + 1] += 1


@Kernel
def _build_grids(first, last, points, offsets, radius, geometry, dims, start, order, xyz):
    for b in range(first, last):
        i, j = offsets[b], offsets[b + 1]
        cells = start[_first_cell(offsets, b) : _first_cell(offsets, b + 1)]
        _grid_geometry(points[i:j], radius, cells.shape[0] - 2, geometry[b], dims[b])
        _fill_cells(points[i:j], geometry[b], dims[b], cells, order[i:j], xyz[i:j])


@device_function
def _is_near(points, n, x, y, z, radius2):
    dx, dy, dz = points[n, 0] - x, points[n, 1] - y, points[n, 2] - z
    return dx * dx + dy * dy + dz * dz < radius2


@device_function
def _scan(points, x, y, z, radius2, row):
    count = 0
    for n in range(points.shape[0]):
        if _is_near(points, n, x, y, z, radius2):
            row[count] = n
            count += 1
            if count == row.shape[0]:
                break
    return count


@device_function
def _insert(row, count, n):
    """Insert ``n`` into the ``count`` ascending indices of ``row``, which keeps its smallest ones."""
    place = min(count, row.shape[0] - 1)
    while place > 0 and row[place - 1] > n:
        row[place] = row[place - 1]
        place -= 1
    row[place] = n
    return min(count + 1, row.shape[0])


@device_function
def _search_cells(spans, order, xyz, x, y, z, radius2, row):
    count = 0
    for k in range(spans.shape[0]):
        for place in range(spans[k, 0], spans[k, 1]):
            n = order[place]
            if count == row.shape[0] and n >= row[count - 1]:
                continue
            if _is_near(xyz, place, x, y, z, radius2):
                count = _insert(row, count, n)
    return count


@device_function
def _neighbour_spans(x, y, z, geometry, dims, start, spans):
    """Write where the points of the 27 cells lie: 9 runs along x. Returns how many points there are."""
    size = geometry[3]
    i = _cell_along(x, geometry[0], size, dims[0])
    j = _cell_along(y, geometry[1], size, dims[1])
    k = _cell_along(z, geometry[2], size, dims[2])
    low, high = max(i - 1, 0), min(i + 1, dims[0] - 1)
    total = 0
    for run in range(9):
        cy, cz = j + run % 3 - 1, k + run // 3 - 1
        spans[run] = 0
        if low <= high and 0 <= cy < dims[1] and 0 <= cz < dims[2]:
            base = (cz * dims[1] + cy) * dims[0]
            spans[run, 0], spans[run, 1] = start[base + low], start[base + high + 1]
            total += spans[run, 1] - spans[run, 0]
    return total


@device_function
def _query_scene(points, centres, radius2, ball_share, geometry, dims, start, order, xyz, index, counts):
    spans = np.empty((9, 2), dtype=np.int64)
    wanted = index.shape[1]
    for q in range(centres.shape[0]):
        x, y, z = centres[q, 0], centres[q, 1], centres[q, 2]
        nearby = _neighbour_spans(x, y, z, geometry, dims, start, spans)
        # A scan is expected to visit N * G / hits points, the cells hold ``nearby``.
        if points.shape[0] * wanted < nearby * nearby * ball_share:
            counts[q] = _scan(points, x, y, z, radius2, index[q])
        else:
            counts[q] = _search_cells(spans, order, xyz, x, y, z, radius2, index[q])


@Kernel
def _query_centres(first, last, points, offsets, centres, centre_offsets, base, rule, grids, index, counts):
    geometry, dims, start, order, xyz = grids
    radius2, ball_share = rule
    for b in range(offsets.shape[0] - 1):
        p, q = max(first, centre_offsets[b]), min(last, centre_offsets[b + 1])
        if p >= q:
            continue
        i, j = offsets[b], offsets[b + 1]
        cells = start[_first_cell(offsets, b) : _first_cell(offsets, b + 1)]
        grid = geometry[b], dims[b], cells, order[i:j], xyz[i:j]
        _query_scene(points[i:j], centres[p:q], radius2, ball_share, *grid, index[p:q], counts[p:q])
        for c in range(p, q):
            index[c, counts[c] :] = index[c, 0] if counts[c] > 0 else 0
            index[c] += base[b]


def _query(
    points: Tensor,  # (N, 3)
    offsets: np.ndarray,  # (B + 1,) where the points of each scene begin
    centres: Tensor,  # (M, 3)
    centre_offsets: np.ndarray,  # (B + 1,)
    base: np.ndarray,  # (B,) added to the indices of each scene
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    n, m, scenes = len(points), len(centres), len(base)
    index, counts = np.empty((m, num_samples), dtype=np.int64), np.empty(m, dtype=np.int64)
    cloud, at = points.contiguous().numpy(), centres.contiguous().numpy()
    geometry, dims = np.empty((scenes, 4)), np.empty((scenes, 3), dtype=np.int64)
    start = np.empty(n + SPARE_CELLS * scenes, dtype=np.int64)
    grids = (geometry, dims, start, np.empty(n, dtype=np.int32), np.empty_like(cloud))
    parallel_for(_build_grids, scenes, cloud, offsets, float(radius), *grids)
    rule = np.square(np.float32(radius)), float(BALL_SHARE)
    queries = (cloud, offsets, at, centre_offsets, base, rule, grids)
    parallel_for(_query_centres, m, *queries, index, counts, chunk=CENTRES)
    return torch.from_numpy(index), torch.from_numpy(counts)


def query(points: Tensor, centres: Tensor, radius: float, num_samples: int) -> tuple[Tensor, Tensor]:
    """(B, N, 3), (B, S, 3) float32 -> indices (B, S, G) within each cloud, counts (B, S) int64."""
    (batch, n), wanted = points.shape[:2], centres.shape[1]
    scenes = np.arange(batch + 1)
    stacks = points.reshape(batch * n, 3), scenes * n, centres.reshape(batch * wanted, 3), scenes * wanted
    index, counts = _query(*stacks, np.zeros(batch, dtype=np.int64), radius, num_samples)
    return index.view(batch, wanted, num_samples), counts.view(batch, wanted)


def query_stack(
    points: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    """(N, 3), (M, 3) float32 -> global indices (M, G), counts (M,) int64."""
    offsets, centre_offsets = (np.cumsum([0, *lengths], dtype=np.int64) for lengths in (counts, centre_counts))
    base = np.where(np.diff(offsets) > 0, offsets[:-1], 0)
    return _query(points, offsets, centres, centre_offsets, base, radius, num_samples)
