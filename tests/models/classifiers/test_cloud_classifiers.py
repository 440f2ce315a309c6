"""Multi-scale PointNet++ and PointNet as classifiers: sizes, both orders, the regulariser, hand arithmetic."""

import pytest
import torch

from pcdet.config import load_config
from pcdet.models.backbones_3d.pointnet import PointNet, distance_from_rotation
from pcdet.models.backbones_3d.pointnet2_multi_scale import PointNet2MultiScale
from pcdet.models.build import build_model
from pcdet.structures.dataset_info import DatasetInfo

SMALL = {
    "NPOINTS": [16, 4],
    "RADIUS": [[0.2, 0.4], [0.8]],
    "NSAMPLE": [[4, 8], [4]],
    "MLPS": [[[8], [8, 16]], [[16, 32]]],
}


def info(classes=3, columns=3):
    return DatasetInfo(
        tuple(f"class_{i}" for i in range(classes)), ("x", "y", "z", "nx", "ny", "nz", "a", "b")[:columns]
    )


def clouds(size=4, points=64, columns=3):
    return torch.randn(size, points, columns, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize(
    "name, columns, widths",
    [
        # (in, out) of every layer of facts' table for XYZ, and 3 more columns with normals in the first layers.
        ("pointnet2_msg", 3, {"normals": 0}),
        ("pointnet2_msg_normal", 6, {"normals": 3}),
    ],
)
def test_the_multi_scale_classifier_has_the_published_sizes(name, columns, widths):
    settings = load_config(f"cfgs/modelnet_models/{name}.yaml").settings
    model = build_model(settings.MODEL, info(40, columns))
    first = 3 + widths["normals"]
    scales = [[first, 32, 32, 64], [first, 64, 64, 128], [first, 64, 96, 128]]
    scales += [[323, 64, 64, 128], [323, 128, 128, 256], [323, 128, 128, 256]]
    scales += [[643, 256, 512, 1024], [1024, 512, 256]]
    expected = 256 * 40 + 40
    for row in scales:  # weights, biases, and two numbers a channel of batch norm
        expected += sum(a * b + 3 * b for a, b in zip(row[:-1], row[1:], strict=True))
    assert sum(p.numel() for p in model.parameters()) == expected
    assert expected == {3: 1_747_368, 6: 1_747_848}[columns]
    assert settings.MODEL.CLS_HEAD.DROPOUT == 0.6  # the published one keeps 0.4


def test_normals_are_in_effect_where_the_yaml_says_so():
    assert load_config("cfgs/modelnet_models/pointnet2_msg_normal.yaml").settings.DATA_CONFIG.USE_NORMALS is True
    assert load_config("cfgs/modelnet_models/pointnet2_ssg_normal.yaml").settings.DATA_CONFIG.USE_NORMALS is True


def test_the_order_of_columns_is_an_option():
    torch.manual_seed(0)
    first = PointNet2MultiScale(info(columns=6), {}, sa_config=SMALL, global_mlp=[32]).eval()
    last = PointNet2MultiScale(info(columns=6), {}, sa_config=SMALL, global_mlp=[32], features_first=False).eval()
    state = first.state_dict()
    for key in state:
        if key.startswith("sa_modules") and key.endswith("linears.0.weight"):
            weight = state[key]
            state[key] = torch.cat([weight[:, -3:], weight[:, :-3]], dim=1)
    last.load_state_dict(state)
    data = clouds(columns=6)
    assert torch.allclose(first(data).global_features, last(data).global_features, atol=1e-5)


def test_lists_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="every list needs one entry a level"):
        PointNet2MultiScale(info(), {}, sa_config=SMALL | {"NPOINTS": [16]}, global_mlp=[32])
    with pytest.raises(ValueError, match="level 1: every scale needs"):
        PointNet2MultiScale(info(), {}, sa_config=SMALL | {"RADIUS": [[0.2], [0.8]]}, global_mlp=[32])


def test_the_distance_from_a_rotation_by_hand():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert distance_from_rotation(turn[None]).item() == pytest.approx(0.0, abs=1e-7)
    matrices = torch.stack([2 * torch.eye(2), torch.eye(2)])  # I - 4 I = -3 I, squared: 9 + 9; and 0
    assert distance_from_rotation(matrices).item() == pytest.approx(9.0)


def test_pointnet_begins_with_the_identity_and_does_not_depend_on_the_order():
    torch.manual_seed(0)
    model = PointNet(info(columns=6), {}, mlp_before=[8], mlp_after=[16], align_mlp=[8], align_hidden=[8]).eval()
    data = clouds(columns=6)
    assert torch.equal(model.align_points(data), torch.eye(3).expand(4, 3, 3))
    out = model(data)
    assert out.global_features.shape == (4, 16) and out.regularisation.item() == 0.0
    shuffled = data[:, torch.randperm(64)]
    assert torch.allclose(model(shuffled).global_features, out.global_features, atol=1e-6)


def test_the_regulariser_is_a_term_of_the_loss_and_moves_the_transform():
    torch.manual_seed(0)
    settings = load_config("cfgs/synthetic_models/pointnet_shapes.yaml").settings
    model = build_model(settings.MODEL, info(3))
    net = model.backbone_3d.align_features
    torch.nn.init.normal_(net.layers[-1].bias, std=0.1)
    batch = {"batch_size": 4, "point_clouds": clouds(), "class_labels": torch.tensor([0, 1, 2, 0])}
    losses = model(batch).losses
    assert set(losses) == {"loss_cls", "loss_regularisation"} and losses["loss_regularisation"].item() > 0
    losses["loss_regularisation"].backward()
    assert net.layers[-1].bias.grad.abs().sum() > 0
    without = PointNet(info(), {}, mlp_before=[8], mlp_after=[16], feature_transform=False)
    assert without.align_features is None and without(clouds()).regularisation.item() == 0.0
