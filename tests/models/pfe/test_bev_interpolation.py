import numpy as np
import pytest
import torch

from pcdet.models.pfe.bev_interpolation import interpolate_bev

MAP = torch.tensor([[[[0.0, 1, 2], [10, 11, 12]]]])  # x in the ones, y in the tens


@pytest.mark.parametrize(
    "x, y, expected",
    [(1.0, 0.0, 1.0), (0.5, 0.25, 3.0), (1.25, 0.5, 6.25), (0.0, 0.75, 7.5)],
)
def test_between_cells_by_hand(x, y, expected):
    found = interpolate_bev(MAP, torch.tensor([0]), torch.tensor([x]), torch.tensor([y]))
    assert found.tolist() == [[pytest.approx(expected)]]


def test_beyond_the_last_column_the_map_fades():
    """Columns 2 and 3 are both clamped to 2: the weights across are 2 - 2.5 and 2.5 - 2, which add up to 0."""
    assert interpolate_bev(MAP, torch.tensor([0]), torch.tensor([2.5]), torch.tensor([0.5])).tolist() == [[0.0]]


def test_every_scene_has_its_own_map():
    maps = torch.cat([MAP, MAP + 100])
    found = interpolate_bev(maps, torch.tensor([1, 0]), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0]))
    assert found.flatten().tolist() == [101.0, 1.0]


def test_gradient():
    bev = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    x, y = torch.rand(6, dtype=torch.float64) * 4, torch.rand(6, dtype=torch.float64) * 3
    scene = torch.tensor([0, 0, 1, 1, 0, 1])
    assert torch.autograd.gradcheck(lambda m: interpolate_bev(m, scene, x, y), bev)


def test_recorded_values(shared):
    data = np.load(shared / "oracles" / "ops" / "vsa_helpers.npz")
    x, y = torch.from_numpy(data["in_x"]), torch.from_numpy(data["in_y"])
    bev = torch.from_numpy(data["in_im"]).permute(2, 0, 1)[None]
    found = interpolate_bev(bev, torch.zeros(len(x), dtype=torch.int64), x, y)
    torch.testing.assert_close(found, torch.from_numpy(data["out_bilinear"]), rtol=1e-5, atol=1e-5)
