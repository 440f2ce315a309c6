"""Dynamic voxelization in torch, on any device: a stable sort and running counts, which are torch's own work."""

from collections.abc import Sequence

import torch
from torch import Tensor


def dynamic_voxels(
    points: Tensor, minimum: Sequence[float], voxel_size: Sequence[float], grid_size: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(N, 1 + C) -> kept (N',), cell (N',), number of each cell's place in the grid (V,), rows (N',), start (V + 1,).

    The host waits once, for the two sizes. Places are numbered by scene, then x, y (, z).
    """
    number, outside = points[:, 0].long(), torch.iinfo(torch.int64).max
    inside = torch.ones_like(number, dtype=torch.bool)
    for axis, (low, size, cells) in enumerate(zip(minimum, voxel_size, grid_size, strict=True)):
        # A tensor as the divisor: on a GPU, torch multiplies by the reciprocal of a number.
        place = ((points[:, 1 + axis] - low) / points.new_full((), size)).floor()
        inside &= (place >= 0) & (place < cells)
        number = number * cells + place.long()
    keys, order = torch.where(inside, number, outside).sort(stable=True)
    opens = keys < outside
    opens[1:] &= keys[1:] != keys[:-1]
    of, position = opens.cumsum(0) - 1, inside.cumsum(0) - 1
    held, voxels = torch.stack([inside.sum(), opens.sum()]).tolist()
    n = torch.arange(len(points), device=points.device)
    kept = n.new_empty(held + 1).scatter_(0, torch.where(inside, position, held), n)[:held]
    start = n.new_empty(voxels + 1).scatter_(0, torch.where(opens, of, voxels), n)
    start[voxels:].fill_(held)
    rows = position[order[:held]]
    cell = torch.empty_like(rows).scatter_(0, rows, of[:held])
    return kept, cell, keys[start[:voxels]], rows, start
