"""Voxel query in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

CELLS_AT_ONCE = 1 << 22  # bounds the memory of the looked-up cells


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
    axes = [torch.arange(-reach, reach + 1, device=centres.device) for reach in ranges]
    offsets = torch.cartesian_prod(*axes)  # (K, 3), z slowest
    size = torch.tensor(grid, device=centres.device)
    keys, order = _flat(voxel_coords, size).sort()
    parts = [(torch.zeros(0, num_samples, dtype=torch.int64, device=centres.device), order[:0])]
    step = max(1, CELLS_AT_ONCE // len(offsets))
    for at, cells in zip(centres.split(step), centre_coords.split(step), strict=True):
        rows = _look_up(keys, order, cells, offsets, size)  # (m, K), -1 where a cell is empty
        away = voxel_centres[rows] - at[:, None] if len(order) else at.new_zeros(*rows.shape, 3)  # (m, K, 3)
        x, y, z = away.unbind(-1)
        near = (rows >= 0) & (x * x + y * y + z * z <= at.new_tensor(radius).square())
        parts.append(_first(rows, near, num_samples))
    indices, counts = zip(*parts, strict=True)
    return torch.cat(indices), torch.cat(counts)


def _flat(coords: Tensor, size: Tensor) -> Tensor:
    """(..., 4) scene z y x -> number of the cell."""
    return ((coords[..., 0] * size[1] + coords[..., 1]) * size[2] + coords[..., 2]) * size[3] + coords[..., 3]


def _look_up(keys: Tensor, order: Tensor, cells: Tensor, offsets: Tensor, size: Tensor) -> Tensor:
    """Row of the voxel in each cell around each of (m, 4) cells, or -1. -> (m, K)."""
    if len(keys) == 0:
        return keys.new_full((len(cells), len(offsets)), -1)
    places = cells[:, None, 1:] + offsets  # (m, K, 3)
    inside = ((places >= 0) & (places < size[1:])).all(dim=-1)
    scenes = cells[:, :1, None].expand(-1, len(offsets), 1)
    wanted = torch.where(inside, _flat(torch.cat([scenes, places], dim=-1), size), -1)
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, order[place], -1)


def _first(rows: Tensor, near: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    rank = near.cumsum(dim=1) - 1  # place of a neighbour among those of its centre
    count = near.sum(dim=1).clamp(max=num_samples)  # (m,)
    m, k = (near & (rank < num_samples)).nonzero(as_tuple=True)
    index = torch.zeros(len(rows), num_samples, dtype=torch.int64, device=rows.device)  # (m, G)
    index[m, rank[m, k]] = rows[m, k]
    place = torch.arange(num_samples, device=rows.device)
    return torch.where(place < count[:, None], index, index[:, :1]), count
