"""The grid seen from above: every finite point has one place, in its own cell, in index order."""

import numpy as np
import pytest
import torch
from ops_cases import lidar_cloud

from pcdet.ops.bev_grid import CELLS_PER_POINT, bev_grid


def test_by_hand():
    grid = bev_grid(np.float32([[0.5, 0, 9], [2.5, 1.5, 0], [0.6, 0.2, 5], [0.5, 1.7, 0]]), 1.0)
    assert grid.low.tolist() == [0.5, 0.0] and grid.dims.tolist() == [3, 2]
    assert grid.start.tolist() == [0, 2, 3, 3, 3, 3, 4] and grid.order.tolist() == [0, 2, 3, 1]
    assert grid.xyz[3].tolist() == [2.5, 1.5, 0.0]


@pytest.mark.parametrize("size", [0.3, 5.0, 1e4])
def test_points_lie_in_their_cells(size):
    points = lidar_cloud(2000).numpy()
    grid = bev_grid(points, size)
    assert grid.size >= size and grid.dims.prod() <= CELLS_PER_POINT * len(points)
    assert sorted(grid.order.tolist()) == list(range(2000)) and np.array_equal(grid.xyz, points[grid.order])
    cells = np.floor((grid.xyz[:, :2] - grid.low) / grid.size).astype(int) @ [grid.dims[1], 1]
    assert np.array_equal(cells, np.arange(len(grid.start) - 1).repeat(np.diff(grid.start)))
    assert (np.diff(grid.order)[np.diff(cells) == 0] > 0).all()


def test_points_that_are_not_finite_are_nowhere():
    points = torch.tensor([[1.0, 1, 1], [torch.nan, 0, 0], [0, torch.inf, 0], [0, 0, -torch.inf]]).numpy()
    grid = bev_grid(points, 1.0)
    assert grid.start.tolist() == [0, 1] and grid.order[0] == 0 and grid.low.tolist() == [1, 1]


@pytest.mark.parametrize("points", [np.zeros((0, 3), np.float32), np.full((3, 3), np.nan, np.float32)])
def test_no_points(points):
    assert not bev_grid(points, 0.5).start.any()


def test_a_wide_and_sparse_cloud_takes_little_memory():
    grid = bev_grid(np.float32([[-1e6, 0, 0], [1e6, 1e6, 0]]), 0.1)
    assert grid.dims.prod() <= 64 and grid.start[-1] == 2
