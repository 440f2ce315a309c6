"""Voxelization as a CPU kernel: one pass over the points with a hash table of the cells."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function

BLOCK = 256  # points whose cells are computed together
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio spreads neighbouring cells


@device_function
def _cells(points, minimum, size, grid, bits):
    """Cell of each point as z, y, x in one number, x in the lowest bits; -1 outside the grid and if not finite."""
    cells = np.empty(points.shape[0], dtype=np.int64)
    place = np.empty((3, BLOCK), dtype=np.float32)
    for low in range(0, points.shape[0], BLOCK):
        count = min(BLOCK, points.shape[0] - low)
        for axis in range(3):  # one axis after the other, so that the divisions become vector instructions
            for n in range(count):
                place[axis, n] = (points[low + n, axis] - minimum[axis]) / size[axis]
        for n in range(count):
            x, y, z = place[0, n], place[1, n], place[2, n]
            inside = x >= 0 and x < grid[0] and y >= 0 and y < grid[1] and z >= 0 and z < grid[2]  # a NaN is not
            cell = (np.int64(z) << bits[0] + bits[1]) | (np.int64(y) << bits[0]) | np.int64(x)
            cells[low + n] = cell if inside else -1
    for column in range(3, points.shape[1]):
        for n in range(points.shape[0]):
            if not np.isfinite(points[n, column]):
                cells[n] = -1
    return cells


@device_function
def _assign(cells, max_points, max_voxels, shift):
    """Row of each point among those of all voxels (-1: dropped), cell and number of points of each voxel."""
    table = np.full(1 << (64 - shift), -1, dtype=np.int32)  # slot -> voxel
    mask = table.shape[0] - 1
    row_of = np.full(cells.shape[0], -1, dtype=np.int64)
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
            row_of[n] = voxel * max_points + counts[voxel]
            counts[voxel] += 1
    return row_of, cell_of[:found], counts[:found]


@Kernel
def _voxelize(points, minimum, size, grid, bits, max_points, max_voxels, shift):
    row_of, cells, counts = _assign(_cells(points, minimum, size, grid, bits), max_points, max_voxels, shift)
    rows = np.zeros((cells.shape[0] * max_points, points.shape[1]), dtype=np.float32)
    for n in range(points.shape[0]):
        if row_of[n] >= 0:
            for column in range(points.shape[1]):
                rows[row_of[n], column] = points[n, column]
    coords = np.empty((cells.shape[0], 3), dtype=np.int32)
    for v in range(cells.shape[0]):
        coords[v, 0] = cells[v] >> bits[0] + bits[1]
        coords[v, 1] = (cells[v] >> bits[0]) & ((1 << bits[1]) - 1)
        coords[v, 2] = cells[v] & ((1 << bits[0]) - 1)
    return rows.reshape(cells.shape[0], max_points, points.shape[1]), coords, counts


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
        np.array(grid_size, dtype=np.float32),
        np.array([(int(cells) - 1).bit_length() for cells in grid_size], dtype=np.int64),
        max_points,
        max_voxels,
        shift,
    )
    return tuple(torch.from_numpy(part) for part in found)
