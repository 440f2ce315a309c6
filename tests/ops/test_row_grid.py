"""Rows in dense grids: by hand, gradients, the Triton kernel."""

import pytest
import torch
from ops_cases import generator
from torch import library

from pcdet.ops.row_grid import rows_to_grid

SCENE, CELL = torch.tensor([1, 0, 1, 2]), torch.tensor([3, 0, 0, 69])
FEATURES = torch.randn(4, 5, generator=generator())


def test_rows_stand_at_their_places():
    grid = rows_to_grid(FEATURES, SCENE, CELL, 4, 70)
    assert grid.shape == (4, 5, 70)
    assert torch.equal(grid[1, :, 3], FEATURES[0]) and torch.equal(grid[0, :, 0], FEATURES[1])
    assert torch.equal(grid[1, :, 0], FEATURES[2]) and torch.equal(grid[2, :, 69], FEATURES[3])
    assert grid.count_nonzero() == 20


def test_no_row_leaves_zeros():
    grid = rows_to_grid(FEATURES[:0], SCENE[:0], CELL[:0], 2, 6)
    assert grid.shape == (2, 5, 6) and not grid.any()


def test_gradients():
    rows = FEATURES.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rows_to_grid(x, SCENE, CELL, 4, 70), rows)
    assert torch.autograd.gradgradcheck(lambda x: rows_to_grid(x, SCENE, CELL, 4, 70).pow(2), rows)


def test_opcheck_of_both():
    library.opcheck(torch.ops.pcdet.rows_to_grid.default, (FEATURES.clone().requires_grad_(), SCENE, CELL, 4, 70))
    grid = torch.randn(4, 5, 70, requires_grad=True)
    library.opcheck(torch.ops.pcdet.grid_to_rows.default, (grid, SCENE, CELL))


def test_errors_name_the_shapes():
    with pytest.raises(ValueError, match=r"must be \(4,\)"):
        rows_to_grid(FEATURES, SCENE[:3], CELL, 4, 70)


@pytest.mark.parametrize("channels", [1, 5, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernel(rooms, device, channels, dtype):
    kernels, reference = rooms("row_grid")
    rows = torch.randn(60, channels, generator=generator()).to(dtype)
    place = torch.randperm(3 * 70, generator=generator())[:60]
    scene, cell = place // 70, place % 70
    expected = reference.rows_to_grid(rows, scene, cell, 3, 70)
    places = (scene.to(device), cell.to(device))
    assert torch.equal(kernels.rows_to_grid(rows.to(device), *places, 3, 70).cpu(), expected)
    assert torch.equal(kernels.grid_to_rows(expected.to(device), *places).cpu(), rows)
    none = (rows[:0].to(device), *(part[:0] for part in places))
    assert not kernels.rows_to_grid(*none, 3, 70).any()


def test_of_two_rows_at_one_place_the_kernel_takes_the_last(rooms, device):
    zeros = torch.zeros(3, dtype=torch.int64, device=device)
    rows = torch.tensor([[1.0], [3.0], [2.0]], device=device)
    assert rooms("row_grid")[0].rows_to_grid(rows, zeros, zeros, 1, 2).tolist() == [[[2.0, 0.0]]]
