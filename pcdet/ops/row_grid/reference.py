"""Rows into a grid, and a grid at some cells, in plain torch; on a CPU nothing of our own is faster."""

from torch import Tensor


def rows_to_grid(features: Tensor, scene: Tensor, cell: Tensor, batch_size: int, cells: int) -> Tensor:
    """(N, C), (N,), (N,) -> (B, C, cells)"""
    grid = features.new_zeros(batch_size, features.shape[1], cells)
    grid[scene, :, cell] = features
    return grid


def grid_to_rows(grid: Tensor, scene: Tensor, cell: Tensor) -> Tensor:
    """(B, C, cells), (N,), (N,) -> (N, C)"""
    return grid[scene, :, cell]
