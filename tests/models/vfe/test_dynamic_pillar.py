import pytest
import torch

from pcdet.models.registry import VFES
from pcdet.models.vfe.dynamic_pillar import DynPillarVFE
from pcdet.models.vfe.pillar_vfe import PillarVFE
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car",), ("x", "y", "z", "i"), (0, -4, -3, 8, 4, 1), (0.5, 0.5, 4.0), (16, 16, 1))
CHANNELS = {"points": 4}


def encoder(**options) -> DynPillarVFE:
    torch.manual_seed(0)
    return DynPillarVFE(INFO, CHANNELS, **{"num_filters": [8, 12], **options})


def cloud(count, scenes=2, seed=0):
    """Points of which some lie outside the grid."""
    draw = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 4, generator=draw) * torch.tensor([9.0, 9.0, 6.0, 1.0]) - torch.tensor([0.5, 4.5, 4, 0])
    return torch.cat([torch.randint(scenes, (count, 1), generator=draw).float(), points], dim=1)


def pairs(pillars, seed=0):
    """The same points for both encoders: two in each of some pillars, so that nothing is padding."""
    draw = torch.Generator().manual_seed(seed)
    cell = torch.randperm(256, generator=draw)[:pillars].sort()[0]
    coords = torch.stack([torch.zeros_like(cell), torch.zeros_like(cell), cell % 16, cell // 16], dim=1)  # x-major
    inside = torch.rand(pillars, 2, 2, generator=draw) * 0.98 + 0.01
    xy = (coords[:, [3, 2]].unsqueeze(1) + inside) * 0.5 + torch.tensor([0.0, -4.0])
    voxels = torch.cat([xy, torch.rand(pillars, 2, 2, generator=draw)], dim=2)
    return voxels, torch.full((pillars,), 2, dtype=torch.int32), coords.int()


def test_it_is_registered_and_says_what_it_writes():
    assert VFES["DynPillarVFE"] is DynPillarVFE
    out = encoder()(cloud(200))
    assert encoder().out_channels == {"pillar_features": 12, "voxel_features": 12}
    assert out.pillar_features.shape[1] == 12 and out.voxel_features is out.pillar_features


def test_parameter_names_are_those_of_published_checkpoints():
    names = {name: tuple(value.shape) for name, value in encoder(num_filters=[64, 64]).named_parameters()}
    assert names == {
        "pfn_layers.0.linear.weight": (32, 10),
        "pfn_layers.0.norm.weight": (32,),
        "pfn_layers.0.norm.bias": (32,),
        "pfn_layers.1.linear.weight": (64, 64),
        "pfn_layers.1.norm.weight": (64,),
        "pfn_layers.1.norm.bias": (64,),
    }
    assert "pfn_layers.0.linear.bias" in dict(encoder(use_norm=False).named_parameters())


def test_a_pillar_by_hand():
    """Two points of the pillar in row 8, column 2: x 1.0 to 1.5, y 0 to 0.5; centre (1.25, 0.25, -1)."""
    vfe = encoder(num_filters=[11], use_norm=False, with_distance=True)
    vfe.pfn_layers[0].linear.weight.data = torch.eye(11)
    vfe.pfn_layers[0].linear.bias.data.zero_()
    points = torch.tensor([[1.1, 0.1, -1.0, 0.3], [1.3, 0.3, 0.0, 0.5]])
    far = torch.tensor([[1.2, 0.2, 3.0, 0.9], [8.0, 0.1, 0.0, 0.9], [-0.1, 0.1, 0.0, 0.9]])  # above, and out of x
    rows = torch.cat([torch.tensor([[1.0]] * 5), torch.cat([points, far])], dim=1)
    out = vfe(rows)
    assert out.voxel_coords.tolist() == [[1, 0, 8, 2]]  # z is no limit
    xyz = torch.cat([points, far[:1]])
    mean, centre = xyz[:, :3].mean(0), torch.tensor([1.25, 0.25, -1.0])
    made = torch.cat([xyz, xyz[:, :3] - mean, xyz[:, :3] - centre, xyz[:, :3].norm(dim=1, keepdim=True)], dim=1)
    torch.testing.assert_close(out.pillar_features[0], made.amax(0).clamp(min=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"num_filters": [8]}, {"use_abslote_xyz": False}, {"with_distance": True}])
def test_without_padding_it_equals_the_encoder_of_padded_pillars(options, training):
    vfe = encoder(**options).train(training)
    twin = PillarVFE(INFO, {"voxels": 4}, **{"num_filters": [8, 12], **options}).train(training)
    twin.load_state_dict(vfe.state_dict())
    voxels, number, coords = pairs(40)
    rows = torch.cat([torch.zeros(80, 1), voxels.flatten(0, 1)], dim=1)
    out = vfe(rows[torch.randperm(80, generator=torch.Generator().manual_seed(1))])
    assert torch.equal(out.voxel_coords, coords)
    torch.testing.assert_close(out.pillar_features, twin(voxels, number, coords).pillar_features, rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(vfe.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)


def test_pillars_come_by_scene_x_and_y():
    coords = encoder()(cloud(300)).voxel_coords.long()
    order = (coords[:, 0] * 16 + coords[:, 3]) * 16 + coords[:, 2]
    assert (order.diff() > 0).all() and coords.unique(dim=0).shape == coords.shape
    assert coords[:, 1].eq(0).all() and encoder()(cloud(9)).voxel_coords.dtype == torch.int32


def test_the_order_of_points_does_not_matter():
    vfe, points = encoder().eval(), cloud(300)
    first, second = vfe(points), vfe(points.flip(0))
    assert torch.equal(first.voxel_coords, second.voxel_coords)
    torch.testing.assert_close(first.pillar_features, second.pillar_features, rtol=1e-5, atol=1e-6)


def test_a_batch_of_two_equals_two_of_one():
    vfe, points = encoder().eval(), cloud(300)
    both = vfe(points)
    for scene in (0, 1):
        alone = vfe(points[points[:, 0] == scene])
        mine = both.voxel_coords[:, 0] == scene
        torch.testing.assert_close(both.pillar_features[mine], alone.pillar_features, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1])
def test_few_points_in_training(count):
    vfe = encoder().train()
    points = cloud(50)[:count]
    points[:, 1:4] = torch.tensor([1.0, 1.0, 0.0])
    out = vfe(points)
    assert out.pillar_features.shape == (count, 12) and out.voxel_coords.shape == (count, 4)
    out.pillar_features.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in vfe.parameters())


def test_no_layers_are_refused():
    with pytest.raises(ValueError, match="NUM_FILTERS is empty"):
        encoder(num_filters=[])
