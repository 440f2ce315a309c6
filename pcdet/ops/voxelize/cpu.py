"""Voxelization as a CPU kernel: one pass over the points with a hash table of the cells."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function

HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio spreads neighbouring cells


@device_function
def _cells(points, minimum, size, grid):
    """Flat cell of each point, -1 where it is outside the grid or not finite."""
    cells = np.zeros(points.shape[0], dtype=np.int64)
    for n in range(points.shape[0]):
        flat = 0
        for axis in range(2, -1, -1):
            cell = np.floor((points[n, axis] - minimum[axis]) / size[axis])
            if not (flat >= 0 and cell >= 0 and cell < grid[axis]):  # written so that a NaN is outside
                flat = -1
            else:
                flat = flat * grid[axis] + np.int64(cell)
        for column in range(3, points.shape[1]):
            if not np.isfinite(points[n, column]):
                flat = -1
        cells[n] = flat
    return cells


@device_function
def _assign(cells, max_points, max_voxels, shift):
    """Voxel of each point (-1: dropped), cell and number of points of each voxel."""
    table = np.full(1 << (64 - shift), -1, dtype=np.int32)  # slot -> voxel
    mask = table.shape[0] - 1
    voxel_of = np.full(cells.shape[0], -1, dtype=np.int32)
    cell_of = np.empty(min(max_voxels, cells.shape[0]), dtype=np.int64)
    counts = np.zeros(cell_of.shape[0], dtype=np.int32)
    found = 0
    for n in range(cells.shape[0]):
        if cells[n] < 0:
            continue
        slot = np.int64((np.uint64(cells[n]) * HASH_FACTOR) >> np.uint64(shift))
        while table[slot] >= 0 and cell_of[table[slot]] != cells[n]:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            if found == max_voxels:
                continue
            table[slot] = found
            cell_of[found] = cells[n]
            found += 1
        voxel = table[slot]
        if counts[voxel] < max_points:
            counts[voxel] += 1
            voxel_of[n] = voxel
    return voxel_of, cell_of[:found], counts[:found]


@Kernel
def _voxelize(points, minimum, size, grid, max_points, max_voxels, shift):
    voxel_of, cells, counts = _assign(_cells(points, minimum, size, grid), max_points, max_voxels, shift)
    voxels = np.zeros((cells.shape[0], max_points, points.shape[1]), dtype=np.float32)
    filled = np.zeros(cells.shape[0], dtype=np.int32)
    for n in range(points.shape[0]):
        voxel = voxel_of[n]
        if voxel >= 0:
            for column in range(points.shape[1]):
                voxels[voxel, filled[voxel], column] = points[n, column]
            filled[voxel] += 1
    coords = np.empty((cells.shape[0], 3), dtype=np.int32)
    for v in range(cells.shape[0]):
        coords[v, 2] = cells[v] % grid[0]
        coords[v, 1] = cells[v] // grid[0] % grid[1]
        coords[v, 0] = cells[v] // (grid[0] * grid[1])
    return voxels, coords, counts


def voxelize(
    points: Tensor,
    minimum: Sequence[float],
    voxel_size: Sequence[float],
    grid_size: Sequence[int],
    max_points: int,
    max_voxels: int,
) -> tuple[Tensor, ...]:
    shift = 64 - max(4, (2 * len(points)).bit_length())  # the table is at most half full
    found = _voxelize(
        points.contiguous().numpy(),
        np.array(minimum, dtype=np.float32),
        np.array(voxel_size, dtype=np.float32),
        np.array(grid_size, dtype=np.int64),
        max_points,
        max_voxels,
        shift,
    )
    return tuple(torch.from_numpy(part) for part in found)
