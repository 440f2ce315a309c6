"""Dynamic pillars: cells by hand, features by hand, order, borders and empty clouds."""

import pytest
import torch

from pcdet.models.vfe.dynamic_cells import CellFeatureLayer, cell_max, cell_mean, cells_of
from pcdet.models.vfe.dynamic_pillar_simple2d import DynamicPillarVFESimple2D
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(
    class_names=("Car",),
    point_features=("x", "y", "z", "intensity"),
    point_cloud_range=(0.0, -2.0, -3.0, 4.0, 2.0, 1.0),
    voxel_size=(1.0, 1.0, 0.5),
    grid_size=(4, 4, 8),
)

POINTS = torch.tensor(
    [
        [1, 3.5, 1.5, 0.0, 0.9],  # scene 1, cell x 3 y 3
        [0, 1.2, -1.5, 0.0, 0.1],  # scene 0, cell x 1 y 0
        [0, 0.5, 1.9, -9.0, 0.2],  # scene 0, cell x 0 y 3; below the grid
        [0, 1.8, -1.1, 0.5, 0.3],  # the same pillar as row 1
        [0, 4.0, 0.0, 0.0, 0.4],  # on the far border: outside
        [1, 0.0, -2.0, 0.0, 0.5],  # on the near border: inside
        [1, -0.1, 0.0, 0.0, 0.6],
    ]
)


def encoder(**options) -> DynamicPillarVFESimple2D:
    torch.manual_seed(0)
    return DynamicPillarVFESimple2D(INFO, {"points": 4}, **({"num_filters": [8], "use_cluster_xyz": False} | options))


def as_sums(vfe: DynamicPillarVFESimple2D, width: int) -> DynamicPillarVFESimple2D:
    """Make the only layer pass its input through: weights of the identity, no norm."""
    torch.nn.init.zeros_(vfe.pfn_layers[0].linear.bias)
    vfe.pfn_layers[0].linear.weight.data = torch.eye(width)
    return vfe


def test_cells_are_sorted_by_scene_x_y():
    cells = cells_of(POINTS, INFO, axes=2)
    assert cells.coords.tolist() == [[0, 3, 0], [0, 0, 1], [1, 0, 0], [1, 3, 3]]
    assert cells.coords.dtype == torch.int32
    assert torch.equal(cells.points, POINTS[[0, 1, 2, 3, 5]])
    assert cells.cell.tolist() == [3, 1, 0, 1, 2]


def test_cells_along_three_axes_leave_out_points_below_the_grid():
    cells = cells_of(POINTS, INFO, axes=3)
    assert cells.coords.tolist() == [[0, 6, 0, 1], [0, 7, 0, 1], [1, 6, 0, 0], [1, 6, 3, 3]]
    assert cells.cell.tolist() == [3, 0, 1, 2]
    # z 0.0 and 0.5 are the lower borders of their cells, whose centres are 0.25 m above.
    assert torch.allclose(cells.offsets(INFO)[:, 2], torch.tensor(-0.25))


def test_maxima_and_means_of_cells():
    cells = cells_of(POINTS, INFO, axes=2)
    values = torch.tensor([[1.0], [-2.0], [3.0], [-6.0], [5.0]])
    assert cell_max(values, cells).tolist() == [[3.0], [-2.0], [5.0], [1.0]]
    assert cell_mean(values, cells).tolist() == [[3.0], [-4.0], [5.0], [1.0]]


def test_features_by_hand():
    """Offsets to the pillar's centre first, then the point, then the offset to the mean, then the distance."""
    vfe = as_sums(encoder(num_filters=[11], use_norm=False, use_cluster_xyz=True, with_distance=True), 11)
    found = vfe(POINTS)
    assert found.pillar_coords.tolist() == [[0, 3, 0], [0, 0, 1], [1, 0, 0], [1, 3, 3]]
    # Two points: the maxima of each channel, not below 0. The centre of the pillar is (1.5, -1.5), of the lowest z cell
    # -2.75; the mean of the points is (1.5, -1.3, 0.25).
    distance = max(torch.tensor(p).norm().item() for p in ([1.2, -1.5, 0.0], [1.8, -1.1, 0.5]))
    expected = [0.3, 0.4, 3.25, 1.8, 0.0, 0.5, 0.3, 0.3, 0.2, 0.25, distance]
    assert torch.allclose(found.pillar_features[1], torch.tensor(expected), atol=1e-6)


def test_without_absolute_coordinates_only_the_other_features_stay():
    vfe = as_sums(encoder(num_filters=[4], use_norm=False, use_abslote_xyz=False), 4)
    assert torch.allclose(vfe(POINTS).pillar_features[3], torch.tensor([0.0, 0.0, 2.75, 0.9]), atol=1e-6)


def test_several_layers_and_their_names():
    vfe = encoder(num_filters=[8, 16])
    assert vfe.out_channels == {"pillar_features": 16}
    assert vfe.pfn_layers[0].linear.weight.shape == (4, 7)
    assert vfe.pfn_layers[1].linear.weight.shape == (16, 8)
    assert "pfn_layers.1.norm.running_var" in vfe.state_dict()
    out = vfe(POINTS).pillar_features
    out.sum().backward()
    assert out.shape == (4, 16)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in vfe.parameters())
    with pytest.raises(ValueError, match="NUM_FILTERS is empty"):
        encoder(num_filters=[])


def test_the_order_of_points_does_not_matter_and_scenes_do_not_mix():
    vfe = encoder().eval()
    draw = torch.Generator().manual_seed(1)
    points = torch.rand(200, 5, generator=draw) * torch.tensor([2.0, 4.0, 4.0, 4.0, 1.0])
    points = torch.cat([points[:, :1].floor(), points[:, 1:] + torch.tensor([0.0, -2.0, -3.0, 0.0])], dim=1)
    both = vfe(points)
    other = vfe(points[torch.randperm(200, generator=draw)])
    assert torch.equal(both.pillar_coords, other.pillar_coords)
    assert torch.allclose(both.pillar_features, other.pillar_features, atol=1e-6)
    for scene in (0, 1):
        alone = vfe(points[points[:, 0] == scene])
        rows = both.pillar_coords[:, 0] == scene
        assert torch.allclose(alone.pillar_features, both.pillar_features[rows], atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("training", [True, False])
def test_no_point_and_one_point(rows, training):
    found = encoder().train(training)(POINTS[1 : 1 + rows])
    assert found.pillar_features.shape == (rows, 8) and found.pillar_coords.shape == (rows, 3)
    assert found.pillar_features.isfinite().all()
    found.pillar_features.sum().backward()


@pytest.mark.parametrize("last", [True, False])
def test_gradients_of_a_layer(last):
    cells = cells_of(POINTS, INFO, axes=2)
    layer = CellFeatureLayer(3, 4, use_norm=True, last=last).double().eval()
    features = torch.randn(5, 3, generator=torch.Generator().manual_seed(3)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, cells), (features,))
