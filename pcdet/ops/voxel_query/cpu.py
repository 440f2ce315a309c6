"""Voxel query as a CPU kernel over rows of the grid.

Voxels are sorted into rows along x, and within a row by x. A row around a centre then takes one look to be found
empty, and a table has one entry a row instead of one a cell: KITTI's finest level has 34 thousand rows for two scenes,
but 24 million cells.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.threads import parallel_for

CENTRES = 256  # centres a piece of work covers


@Kernel
def _sort_by(keys, order, start, out):
    """Stable counting sort: write ``order`` by ascending key to ``out``, and where each key begins to ``start``."""
    start[:] = 0
    for n in order:
        start[keys[n] + 2] += 1
    for key in range(2, start.shape[0]):
        start[key] += start[key - 1]
    for n in order:
        out[start[keys[n] + 1]] = n
        start[keys[n] + 1] += 1


@device_function
def _lower_bound(xs, first, last, x):
    """The first place in an ascending range whose value is not below ``x``."""
    while first < last:
        middle = (first + last) >> 1
        if xs[middle] < x:
            first = middle + 1
        else:
            last = middle
    return first


@device_function
def _search(c, coords, at, reach, sizes, start, xs, xyz, radius2, row):
    """Places of the sorted voxels near centre ``c``, in the order of the search. Returns how many."""
    x, y, z, count = at[c, 0], at[c, 1], at[c, 2], 0
    low, high = max(coords[c, 3] - reach[2], 0), min(coords[c, 3] + reach[2], sizes[3] - 1)
    for k in range(max(coords[c, 1] - reach[0], 0), min(coords[c, 1] + reach[0], sizes[1] - 1) + 1):
        for j in range(max(coords[c, 2] - reach[1], 0), min(coords[c, 2] + reach[1], sizes[2] - 1) + 1):
            line = (coords[c, 0] * sizes[1] + k) * sizes[2] + j
            place, last = start[line], start[line + 1]
            if place == last or xs[last - 1] < low:
                continue
            if xs[place] < low:
                place = _lower_bound(xs, place, last, low)
            while place < last and xs[place] <= high:
                dx, dy, dz = xyz[place, 0] - x, xyz[place, 1] - y, xyz[place, 2] - z
                if dx * dx + dy * dy + dz * dz <= radius2:
                    row[count] = place
                    count += 1
                    if count == row.shape[0]:
                        return count
                place += 1
    return count


@Kernel
def _query_centres(first, last, coords, at, reach, sizes, start, xs, xyz, order, radius2, index, counts):
    for c in range(first, last):
        count = _search(c, coords, at, reach, sizes, start, xs, xyz, radius2, index[c])
        for g in range(count):
            index[c, g] = order[index[c, g]]
        index[c, count:] = index[c, 0] if count > 0 else 0
        counts[c] = count


def _sorted_by(keys: np.ndarray, order: np.ndarray, distinct: int) -> tuple[np.ndarray, np.ndarray]:
    """The order of the keys, stable, and the start of each of the ``distinct`` keys and of the end."""
    start, out = np.empty(distinct + 2, dtype=np.int64), np.empty_like(order)
    _sort_by(keys, order, start, out)
    return out, start[:-1]


def query(
    voxel_coords: Tensor,
    voxel_centres: Tensor,
    grid: Sequence[int],
    centres: Tensor,
    centre_coords: Tensor,
    ranges: Sequence[int],
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    """``grid`` is scenes, cells along z, y, x. -> indices (M, G), counts (M,) int64."""
    scene, z, y, x = voxel_coords.numpy().T
    order, _ = _sorted_by(x, np.arange(len(x)), grid[3])
    order, start = _sorted_by((scene * grid[1] + z) * grid[2] + y, order, grid[0] * grid[1] * grid[2])
    index = np.empty((len(centres), num_samples), dtype=np.int64)
    counts = np.empty(len(centres), dtype=np.int64)
    queries = (centre_coords.contiguous().numpy(), centres.contiguous().numpy(), np.array(ranges), np.array(grid))
    voxels = (start, x[order], voxel_centres.index_select(0, torch.from_numpy(order)).numpy(), order)
    parallel_for(
        _query_centres, len(centres), *queries, *voxels, np.square(np.float32(radius)), index, counts, chunk=CENTRES
    )
    return torch.from_numpy(index), torch.from_numpy(counts)
