import pytest
import torch

from pcdet.models.map_to_bev.pointpillar_scatter import PointPillarScatter, PointPillarScatter3d
from pcdet.structures.dataset_info import DatasetInfo


def scatter_of(grid=(4, 3, 1), channels=2):
    info = DatasetInfo(("Car",), ("x", "y", "z"), (0, 0, 0, 4, 3, 1), (1.0, 1.0, 1.0), grid, 5)
    return PointPillarScatter(info, {"pillar_features": 2}, num_bev_features=channels)


def test_pillars_lie_at_their_cells():
    features = torch.tensor([[1.0, 2], [3, 4], [5, 6]], requires_grad=True)
    coords = torch.tensor([[0, 0, 2, 3], [1, 0, 0, 0], [1, 0, 1, 2]], dtype=torch.int32)
    image = scatter_of()(features, coords, batch_size=3).spatial_features
    wanted = torch.zeros(3, 2, 3, 4)
    wanted[0, :, 2, 3] = torch.tensor([1.0, 2])
    wanted[1, :, 0, 0] = torch.tensor([3.0, 4])
    wanted[1, :, 1, 2] = torch.tensor([5.0, 6])
    assert torch.equal(image, wanted) and image.is_contiguous()
    (image * torch.arange(72.0).view_as(image)).sum().backward()
    assert features.grad.tolist() == [[11.0, 23], [24, 36], [30, 42]]


def test_no_pillars_make_an_empty_map():
    image = scatter_of()(torch.zeros(0, 2), torch.zeros(0, 4, dtype=torch.int32), batch_size=2).spatial_features
    assert image.shape == (2, 2, 3, 4) and not image.any()


def test_wrong_grids_and_channels_are_named():
    with pytest.raises(ValueError, match="2 cells along z"):
        scatter_of(grid=(4, 3, 2))
    with pytest.raises(ValueError, match="NUM_BEV_FEATURES is 64, but the pillars have 2"):
        scatter_of(channels=64)


def scatter3d(channels=4, shape=(4, 3, 2)):
    info = DatasetInfo(("Car",), ("x", "y", "z"), (0, 0, 0, 4, 3, 1), (1.0, 1.0, 1.0), (4, 3, 1), 5)
    return PointPillarScatter3d(info, {"pillar_features": 2}, input_shape=shape, num_bev_features=channels)


def test_cells_along_z_become_channels():
    features = torch.tensor([[1.0, 2], [3, 4]])
    coords = torch.tensor([[0, 1, 2, 3], [1, 0, 0, 0]], dtype=torch.int32)
    image = scatter3d()(features, coords, batch_size=2).spatial_features
    wanted = torch.zeros(2, 2, 2, 3, 4)  # scene, channel, z, y, x
    wanted[0, :, 1, 2, 3] = torch.tensor([1.0, 2])
    wanted[1, :, 0, 0, 0] = torch.tensor([3.0, 4])
    assert torch.equal(image, wanted.flatten(1, 2))
    assert scatter3d().out_channels == {"spatial_features": 4}


def test_wrong_shapes_of_a_grid_with_z_are_named():
    with pytest.raises(ValueError, match="NUM_BEV_FEATURES is 64, but the features' 2 channels times 2 cells"):
        scatter3d(channels=64)
    with pytest.raises(ValueError, match=r"INPUT_SHAPE is \[4, 3\]"):
        scatter3d(shape=(4, 3))
