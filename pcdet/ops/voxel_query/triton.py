"""Voxel query as a Triton kernel: the cells around each place are looked up in a table of the grid.

Voxel R-CNN, B = 2: 2 x 128 x 216 places, each looking at up to 9^3 = 729 cells of three levels: 40 M look-ups a level,
of which few meet a voxel. In a dense table they lie in runs of 9 along x, two sectors of 32 bytes each: 287 MB through
the L2 cache, some 0.1 ms; a hash would touch a sector for every cell, 1.3 GB. The table has to be filled: 95 MB at the
finest level (2 x 21 x 800 x 704 cells), 50 us for a card of 2 TB/s. It is the larger part of the memory, too, so grids
of more than 2^28 cells (a gigabyte) are looked up in the sorted keys of the voxels instead, in some 17 steps a cell.

Cells come in the order z, y, x, a tile of places against a tile of cells, until all places of the tile have G voxels.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.triton import block_of, launch

GRID = ("size_z", "size_y", "size_x", "range_z", "range_y", "range_x")
TABLE_CELLS = 1 << 28  # of the largest grid that gets a table


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
    index = centres.new_empty(len(centres), num_samples, dtype=torch.int64)
    count = centres.new_empty(len(centres), dtype=torch.int64)
    scene, z, y, x = voxel_coords.unbind(dim=1)
    keys = ((scene * grid[1] + z) * grid[2] + y) * grid[3] + x  # (V,)
    cells = grid[0] * grid[1] * grid[2] * grid[3]
    if cells <= TABLE_CELLS:
        rows = torch.full((cells,), -1, dtype=torch.int32, device=keys.device)
        rows[keys] = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
        keys = None
    else:
        keys, rows = keys.sort()
    block = 16
    launch(
        query_kernel,
        (triton.cdiv(len(centres), block),),
        *(keys, rows, len(voxel_coords), voxel_centres.contiguous(), *grid),
        *(centres.contiguous(), centre_coords.contiguous(), len(centres), *ranges),
        *(index, count, radius, num_samples, max(len(voxel_coords), 1).bit_length()),
        BLOCK_M=block,
        BLOCK_K=64,
        BLOCK_G=block_of(num_samples, 1, 32),
    )
    return index, count


@triton.jit
def _near_grid(cell):
    """A coordinate in 32 bits; what is too far from any grid for them stays outside."""
    return tl.minimum(tl.maximum(cell, -(1 << 30)), 1 << 30).to(tl.int32)


@triton.jit(do_not_specialize=["num_voxels", "scenes", "num_centres", "steps", *GRID])
def query_kernel(
    keys,  # (V,) sorted numbers of the voxels' cells, or None if there is a table
    rows,  # (V,) row of each key, or (cells,) row of the voxel in each cell, -1 where it is empty
    num_voxels,
    voxel_centres,  # (V, 3)
    scenes,
    size_z,
    size_y,
    size_x,
    centres,  # (M, 3)
    centre_coords,  # (M, 4) scene z y x
    num_centres,
    range_z,
    range_y,
    range_x,
    index,  # (M, G), written
    count,  # (M,), written
    radius,
    num_samples,
    steps,  # halvings that find a key
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = m < num_centres
    x = tl.load(centres + m * 3, mask=is_row, other=0.0)
    y = tl.load(centres + m * 3 + 1, mask=is_row, other=0.0)
    z = tl.load(centres + m * 3 + 2, mask=is_row, other=0.0)
    scene = tl.load(centre_coords + m * 4, mask=is_row, other=-1)
    home_z = _near_grid(tl.load(centre_coords + m * 4 + 1, mask=is_row, other=0))
    home_y = _near_grid(tl.load(centre_coords + m * 4 + 2, mask=is_row, other=0))
    home_x = _near_grid(tl.load(centre_coords + m * 4 + 3, mask=is_row, other=0))
    of_scene = is_row & (scene >= 0) & (scene < scenes)
    if keys is None:  # all cells have a place in a table, so 32 bits number them
        scene = scene.to(tl.int32)
    found = tl.where(of_scene, 0, num_samples)  # what cannot find any is full
    first = tl.zeros([BLOCK_M], tl.int32)
    out = index + m.to(tl.int64) * num_samples
    wide, deep = 2 * range_x + 1, 2 * range_y + 1
    cells = (2 * range_z + 1) * deep * wide
    low = tl.zeros([], tl.int32)
    while (low < cells) & (tl.min(found, 0) < num_samples):
        k = low + tl.arange(0, BLOCK_K)
        cell_z = home_z[:, None] + (k // (deep * wide) - range_z)[None, :]
        cell_y = home_y[:, None] + (k // wide % deep - range_y)[None, :]
        cell_x = home_x[:, None] + (k % wide - range_x)[None, :]
        inside = (cell_z >= 0) & (cell_z < size_z) & (cell_y >= 0) & (cell_y < size_y)
        inside &= (cell_x >= 0) & (cell_x < size_x) & (k < cells)[None, :] & of_scene[:, None]
        wanted = ((scene[:, None] * size_z + cell_z) * size_y + cell_y) * size_x + cell_x
        if keys is None:
            row = tl.load(rows + wanted, mask=inside, other=-1)
        else:
            start = tl.zeros([BLOCK_M, BLOCK_K], tl.int32)
            end = start + num_voxels
            for _ in range(steps):
                middle = (start + end) // 2
                is_open = start < end
                below = tl.load(keys + middle, mask=inside & is_open, other=0) < wanted
                start = tl.where(is_open & below, middle + 1, start)
                end = tl.where(is_open & (below == 0), middle, end)
            inside &= start < num_voxels
            inside &= tl.load(keys + start, mask=inside, other=-1) == wanted
            row = tl.load(rows + start, mask=inside, other=-1).to(tl.int32)
        holds = row >= 0
        dx = tl.load(voxel_centres + row * 3, mask=holds, other=0.0) - x[:, None]
        dy = tl.load(voxel_centres + row * 3 + 1, mask=holds, other=0.0) - y[:, None]
        dz = tl.load(voxel_centres + row * 3 + 2, mask=holds, other=0.0) - z[:, None]
        hits = (holds & (dx * dx + dy * dy + dz * dz <= radius * radius)).to(tl.int32)
        held = tl.sum(hits, 1)
        if tl.max(held, 0) > 0:
            rank = tl.cumsum(hits, 1)
            place = found[:, None] + rank - 1
            tl.store(out[:, None] + place, row.to(tl.int64), mask=(hits > 0) & (place < num_samples))
            leading = tl.sum(tl.where((hits > 0) & (rank == 1), row, 0), 1)
            first = tl.where((found == 0) & (held > 0), leading, first)
            found += held
        low += BLOCK_K
    found = tl.where(of_scene, tl.minimum(found, num_samples), 0)
    tl.store(count + m, found.to(tl.int64), mask=is_row)
    fill = first.to(tl.int64)
    for at in range(0, num_samples, BLOCK_G):
        place = at + tl.arange(0, BLOCK_G)
        rest = is_row[:, None] & (place[None, :] >= found[:, None]) & (place[None, :] < num_samples)
        tl.store(out[:, None] + place[None, :], fill[:, None] + tl.zeros_like(rest).to(tl.int64), mask=rest)
