import json

import pytest
import torch
from torch import nn

from pcdet.models.backbones_3d.pointnet2_msg import PointNet2MSG
from pcdet.models.backbones_3d.pointnet2_stack import PointNet2Backbone
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car",), ("x", "y", "z", "intensity"), (0.0, -4.0, -2.0, 8.0, 4.0, 2.0))
CONFIG = {
    "NPOINTS": [12, 4],
    "RADIUS": [[0.5, 1.0], [2.0, 4.0]],
    "NSAMPLE": [[4, 8], [4, 8]],
    "MLPS": [[[4, 6], [5]], [[8], [8, 7]]],
}
FP_MLPS = [[9, 10], [11]]
BOTH = pytest.mark.parametrize("kind", [PointNet2MSG, PointNet2Backbone])


def backbone(kind=PointNet2MSG, config=CONFIG, fp_mlps=FP_MLPS, width=4):
    torch.manual_seed(0)
    return kind(INFO, {"points": width}, sa_config=config, fp_mlps=fp_mlps)


def scenes(*counts: int, width: int = 4) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    rows = [torch.rand(n, width, generator=draw) * torch.tensor([4.0, 4, 1, 1][:width]) for n in counts]
    return torch.cat([torch.nn.functional.pad(part, (1, 0), value=i) for i, part in enumerate(rows)])


def test_both_are_registered():
    assert BACKBONES_3D["PointNet2MSG"] is PointNet2MSG
    assert BACKBONES_3D["PointNet2Backbone"] is PointNet2Backbone


def published():
    config = {
        "NPOINTS": [4096, 1024, 256, 64],
        "RADIUS": [[0.1, 0.5], [0.5, 1.0], [1.0, 2.0], [2.0, 4.0]],
        "NSAMPLE": [[16, 32]] * 4,
        "MLPS": [
            [[16, 16, 32], [32, 32, 64]],
            [[64, 64, 128], [64, 96, 128]],
            [[128, 196, 256], [128, 196, 256]],
            [[256, 256, 512], [256, 384, 512]],
        ],
    }
    return config, [[128, 128], [256, 256], [512, 512], [512, 512]]


def test_names_shapes_and_order_are_those_of_published_checkpoints(shared):
    facts = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())["state_dicts"]
    entries = facts["kitti_models/pointrcnn.yaml"]
    expected = {k.removeprefix("backbone_3d."): v for k, v in entries.items() if k.startswith("backbone_3d.")}
    with torch.device("meta"):
        net = backbone(PointNet2MSG, *published())
    state = {name: list(value.shape) for name, value in net.state_dict().items()}
    assert state == expected
    assert list(state) == list(expected)


def test_the_stacked_one_reads_coordinates_again_at_the_end():
    with torch.device("meta"):
        mine, other = (backbone(kind, *published()).state_dict() for kind in (PointNet2Backbone, PointNet2MSG))
    assert mine.keys() == other.keys()
    differing = [name for name in mine if mine[name].shape != other[name].shape]
    assert differing == ["FP_modules.0.mlp.0.weight"]
    assert mine[differing[0]].shape == (128, 260, 1, 1) and other[differing[0]].shape == (128, 257, 1, 1)


@BOTH
def test_every_point_has_a_feature_and_every_parameter_a_gradient(kind):
    net, points = backbone(kind), scenes(30, 30)
    out = net(points, 2)
    assert out.point_features.shape == (60, 10) and net.out_channels == {"point_features": 10}
    assert torch.equal(out.point_coords, points[:, :4])
    out.point_features.square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())


@BOTH
def test_a_batch_equals_its_scenes_alone(kind):
    net, points = backbone(kind).eval(), scenes(30, 30)
    whole = net(points, 2).point_features
    for i in range(2):
        part = points[points[:, 0] == i]
        part[:, 0] = 0
        torch.testing.assert_close(whole[points[:, 0] == i], net(part, 1).point_features)


@BOTH
def test_moving_a_scene_changes_nothing_but_what_reads_coordinates(kind):
    """Only offsets between points enter PointNet2MSG."""
    net, points = backbone(kind).eval(), scenes(30)
    moved = points + torch.tensor([0.0, 8, -16, 4, 0])
    same = torch.allclose(net(points, 1).point_features, net(moved, 1).point_features, rtol=1e-3, atol=1e-4)
    assert same == (kind is PointNet2MSG)


@BOTH
def test_points_without_further_channels(kind):
    out = backbone(kind, width=3)(scenes(30, width=3), 1)
    assert out.point_features.shape == (30, 10) and out.point_features.isfinite().all()


@BOTH
@pytest.mark.parametrize("counts", [(0, 30), (30, 0, 0), (0, 0)])
def test_empty_scenes_are_legal_and_change_nothing(kind, counts):
    net, points = backbone(kind), scenes(*counts)
    out = net(points, len(counts)).point_features
    assert out.shape == (len(points), 10)
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert all(value.isfinite().all() for value in net.state_dict().values())
    alone = points.clone()
    alone[:, 0] = 0
    net.eval()
    assert torch.equal(net(points, len(counts)).point_features, net(alone, 1).point_features)


def test_scenes_of_different_size_name_the_processor():
    with pytest.raises(ValueError, match=r"\[30, 0, 20\].*'sample_points'"):
        backbone()(scenes(30, 0, 20), 3)


def test_the_stacked_one_takes_scenes_of_any_size():
    net, points = backbone(PointNet2Backbone).eval(), scenes(30, 3, 1)
    whole = net(points, 3).point_features
    assert whole.shape == (34, 10) and whole.isfinite().all()
    for i in range(3):
        part = points[points[:, 0] == i]
        part[:, 0] = 0
        torch.testing.assert_close(whole[points[:, 0] == i], net(part, 1).point_features)


def test_fewer_points_than_centres_repeat_the_first():
    """PointNet2MSG passes NPOINTS centres on, as OpenPCDet does; the stacked one only different ones."""
    for kind, expected in ((PointNet2MSG, [12, 4]), (PointNet2Backbone, [7, 4])):
        net = backbone(kind).eval()
        cloud = scenes(7)[:, 1:4]
        centres = []
        for level in net.SA_modules:
            level.register_forward_hook(lambda module, inputs, output, kept=centres: kept.append(output[0]))
        net(scenes(7), 1)
        assert [len(part) for part in centres] == expected
        assert torch.equal(centres[0][7:], cloud[:1].expand(expected[0] - 7, 3))


def test_use_xyz_is_an_option_of_sa_config():
    net = backbone(config=CONFIG | {"USE_XYZ": False})
    assert [net.SA_modules[i].mlps[0][0].weight.shape[1] for i in range(2)] == [1, 11]
    assert net(scenes(30), 1).point_features.isfinite().all()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"NPOINTS": [12]}, "one entry a level"),
        ({"RADIUS": [[0.5], [2.0, 4.0]]}, "level 0 need one entry a scale"),
        ({"MLPS": [[[4], [5]], [[8]]]}, "level 1 need one entry a scale"),
    ],
)
@BOTH
def test_lists_that_do_not_fit_together(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        backbone(kind, config=CONFIG | changes)


def test_the_stacked_one_begins_as_stacked_set_abstraction_does():
    """Kaiming: the deviation of a weight is sqrt(2 / inputs)."""
    config = CONFIG | {"MLPS": [[[200, 300], [5]], [[8], [8, 7]]]}
    layer = backbone(PointNet2Backbone, config).SA_modules[0].mlps[0][3]
    assert isinstance(layer, nn.Conv2d)
    assert layer.weight.std().item() == pytest.approx((2 / 200) ** 0.5, rel=0.02)
