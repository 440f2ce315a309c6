"""Voxelization in plain torch, by sorting."""

from collections.abc import Sequence

import torch
from torch import Tensor


def voxelize(
    points: Tensor,  # (N, C) float32
    minimum: Sequence[float],
    voxel_size: Sequence[float],
    grid_size: Sequence[int],
    max_points: int,
    max_voxels: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> voxels (V, P, C), coords (V, 3) z y x, num_points (V,)."""
    points, cells = _in_grid(points, minimum, voxel_size, grid_size)
    flat = (cells[:, 2] * grid_size[1] + cells[:, 1]) * grid_size[0] + cells[:, 0]  # (N,)
    voxel_of, first = _by_first_occurrence(flat)
    slot = _rank_within(voxel_of)
    kept = (voxel_of < max_voxels) & (slot < max_points)
    count = min(len(first), max_voxels)
    voxels = points.new_zeros(count, max_points, points.shape[1])  # (V, P, C)
    voxels[voxel_of[kept], slot[kept]] = points[kept]
    num_points = torch.bincount(voxel_of[kept], minlength=count)
    return voxels, cells[first[:count]].flip(1).int(), num_points.int()


def _in_grid(points, minimum, voxel_size, grid_size) -> tuple[Tensor, Tensor]:
    """The points in the grid and their (N, 3) int64 cells x y z."""
    cells = ((points[:, :3] - points.new_tensor(minimum)) / points.new_tensor(voxel_size)).floor()
    inside = (cells >= 0) & (cells < points.new_tensor(grid_size))
    kept = inside.all(dim=1) & points.isfinite().all(dim=1)
    return points[kept], cells[kept].long()


def _by_first_occurrence(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Number equal keys in the order in which they first appear: (N,) numbers, (V,) positions of the first ones."""
    unique, inverse = keys.unique(return_inverse=True)
    positions = torch.arange(len(keys), device=keys.device)
    first = torch.full_like(unique, len(keys)).scatter_reduce(0, inverse, positions, "amin")
    order = first.argsort()
    number = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=keys.device))
    return number[inverse], first[order]


def _rank_within(groups: Tensor) -> Tensor:
    """(N,) how many earlier rows are in the same group."""
    order = groups.argsort(stable=True)
    start = torch.searchsorted(groups[order], groups[order])  # first position of the group among the sorted rows
    rank = torch.arange(len(groups), device=groups.device) - start
    return torch.empty_like(rank).scatter_(0, order, rank)
