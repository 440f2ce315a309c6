"""PointNet++ for segmentation: sizes, feature propagation by hand, the loss, categories, awkward clouds."""

import pytest
import torch
from cloud_zoo import NAMES, batch_of, info_of, settings_of, small_model
from torch import nn

from pcdet.config import load_config
from pcdet.datasets import describe_clouds
from pcdet.layers.cloud_propagation import CloudPropagation, interpolate
from pcdet.models.backbones_3d.pointnet2_segmentation import PointNet2Segmentation
from pcdet.models.build import build_model
from pcdet.models.seg_heads.segmentation_head import PointPreds, SegmentationHead
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.detections import PointScores

SEGMENTERS = [name for name in NAMES if settings_of(name).MODEL.NAME == "Segmenter"]
SMALL = {"NPOINTS": [16, 4], "RADIUS": [[0.4], [0.8]], "NSAMPLE": [[8], [4]], "MLPS": [[[8, 16]], [[16, 32]]]}


def info(columns=3, categories=None):
    return DatasetInfo(("a", "b", "c"), ("x", "y", "z", "u", "v", "w")[:columns], category_names=categories)


# (in, out) of every layer, from the table of facts; 9 more numbers a layer: a bias and two of batch norm a channel.
PART = {
    "ssg": [
        [6, 64, 64, 128], [131, 128, 128, 256], [259, 256, 512, 1024],
        [1280, 256, 256], [384, 256, 128], [150, 128, 128, 128], [128, 128],
    ],
    "msg": [
        [6, 32, 32, 64], [6, 64, 64, 128], [6, 64, 96, 128], [323, 128, 128, 256], [323, 128, 196, 256],
        [515, 256, 512, 1024], [1536, 256, 256], [576, 256, 128], [150, 128, 128], [128, 128],
    ],
}  # fmt: skip
SEMANTIC = [
    [9, 32, 32, 64], [67, 64, 64, 128], [131, 128, 128, 256], [259, 256, 256, 512],
    [768, 256, 256], [384, 256, 256], [320, 256, 128], [128, 128, 128, 128], [128, 128],
]  # fmt: skip


@pytest.mark.parametrize(
    "name, rows, classes",
    [
        ("shapenetpart_models/pointnet2_part_ssg", PART["ssg"], 50),
        ("shapenetpart_models/pointnet2_part_msg", PART["msg"], 50),
        ("s3dis_models/pointnet2_sem_ssg", SEMANTIC, 13),
    ],
)
def test_the_published_sizes(name, rows, classes):
    settings = load_config(f"cfgs/{name}.yaml").settings
    model = build_model(settings.MODEL, describe_clouds(settings.DATA_CONFIG, settings.CLASS_NAMES))
    expected = 128 * classes + classes
    for row in rows:
        expected += sum(a * b + 3 * b for a, b in zip(row[:-1], row[1:], strict=True))
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model.seg_head.layers[3].p == 0.5


@pytest.mark.parametrize("name", SEGMENTERS)
def test_every_yaml_trains_and_scores_every_point(name):
    model, batch = small_model(name), batch_of(name)
    out = model(batch)
    assert set(out.losses) == {"loss_seg"} and set(out.metrics) == {"accuracy"}
    out.losses["loss_seg"].backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    model.eval()
    scores = model(batch)
    assert isinstance(scores, PointScores) and scores.logits.shape == (4, 96, info_of(name).num_class)
    alone = model({**batch, **{k: v[:1] for k, v in batch.items() if isinstance(v, torch.Tensor)}}).logits
    assert torch.allclose(alone, scores.logits[:1], atol=1e-5)


def test_interpolation_by_hand():
    known = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [9, 9, 9]]])
    features = torch.tensor([[[1.0], [2.0], [4.0], [100.0]]])
    points = torch.tensor([[[0.5, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    # Squared distances of the first: 0.25, 0.25, 4.25. The second lies on a known point.
    weights = [1 / 0.25, 1 / 0.25, 1 / 4.25]
    expected = (weights[0] * 1 + weights[1] * 2 + weights[2] * 4) / sum(weights)
    found = interpolate(points, known, features)[0, :, 0]
    assert found.tolist() == pytest.approx([expected, 2.0], abs=1e-4)


def test_interpolation_from_fewer_than_three():
    points = torch.tensor([[[1.0, 0, 0]]])
    known = torch.tensor([[[0.0, 0, 0], [3.0, 0, 0]]])
    found = interpolate(points, known, torch.tensor([[[1.0], [6.0]]]))
    assert found.item() == pytest.approx((1 / 1 * 1 + 1 / 4 * 6) / (1 + 1 / 4))
    assert interpolate(points, known[:, :1], torch.tensor([[[7.0]]])).item() == pytest.approx(7.0)


@pytest.mark.parametrize("whole", [False, True])
def test_propagation_is_interpolation_then_skip_then_mlp(whole):
    torch.manual_seed(0)
    layer = CloudPropagation(5, 2, [6, 4]).eval()
    for norm in layer.mlp.norms:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
    nn.init.normal_(layer.mlp.linears[0].bias)
    points, skip = torch.randn(2, 7, 3), torch.randn(2, 7, 2)
    known, features = torch.randn(2, 4, 3), torch.randn(2, 1 if whole else 4, 5)
    carried = features.expand(2, 7, 5) if whole else interpolate(points, known, features)
    rows = torch.cat([carried, skip], dim=-1).flatten(0, 1)
    for linear, norm in zip(layer.mlp.linears, layer.mlp.norms, strict=True):
        rows = torch.relu(norm(linear(rows)))
    out = layer(points, skip, None if whole else known, features)
    assert torch.allclose(out.flatten(0, 1), rows, atol=1e-5)


def test_the_category_changes_the_scores():
    torch.manual_seed(0)
    data = info(6, ("chair", "lamp"))
    backbone = PointNet2Segmentation(
        data, {}, sa_config=SMALL, fp_mlps=[[16], [8]], last_skip=["category", "coordinates", "features"]
    ).eval()
    assert backbone.fp_modules[1].mlp.linears[0].in_features == 16 + 2 + 3 + 3
    clouds = torch.randn(2, 64, 6)
    first = backbone(clouds, torch.tensor([0, 0])).dense_point_features
    second = backbone(clouds, torch.tensor([0, 1])).dense_point_features
    assert torch.equal(first[0], second[0]) and not torch.allclose(first[1], second[1])
    with pytest.raises(ValueError, match="the batch has no categories"):
        backbone(clouds)
    with pytest.raises(ValueError, match="the data set has none"):
        PointNet2Segmentation(info(), {}, sa_config=SMALL, fp_mlps=[[16], [8]], last_skip=["category"])
    with pytest.raises(ValueError, match="FP_MLPS: 2 levels"):
        PointNet2Segmentation(info(), {}, sa_config=SMALL, fp_mlps=[[16]])


def test_coordinates_can_be_features_as_in_the_port():
    torch.manual_seed(0)
    with_xyz = PointNet2Segmentation(
        info(6), {}, sa_config=SMALL, fp_mlps=[[16], [8]], coordinates_as_features=True, features_first=False
    ).eval()
    without = PointNet2Segmentation(info(6), {}, sa_config=SMALL, fp_mlps=[[16], [8]], features_first=False).eval()
    state = with_xyz.state_dict()
    key = "sa_modules.0.mlps.0.linears.0.weight"
    assert state[key].shape == (8, 9)
    state[key][:, 3:6] = 0  # absolute coordinates without effect
    without.load_state_dict({**state, key: torch.cat([state[key][:, :3], state[key][:, 6:]], dim=1)})
    clouds = torch.randn(1, 64, 6)
    assert torch.allclose(with_xyz(clouds).dense_point_features, without(clouds).dense_point_features, atol=1e-5)


def test_the_loss_by_hand():
    data = DatasetInfo(("a", "b"), ("x", "y", "z"), class_weights=(1.0, 3.0))
    head = SegmentationHead(data, {"dense_point_features": 4})
    logits = torch.tensor([[[1.0, -1.0], [0.5, 0.0], [7.0, 7.0]]])
    logs = torch.log_softmax(logits, dim=-1)[0]
    loss = head.loss(PointPreds(logits), torch.tensor([[0, 1, -1]]))["loss_seg"]
    assert loss.item() == pytest.approx(-(1.0 * logs[0, 0] + 3.0 * logs[1, 1]).item() / 2)
    nothing = head.loss(PointPreds(logits.requires_grad_()), torch.full((1, 3), -1))["loss_seg"]
    nothing.backward()
    assert nothing.item() == 0.0 and logits.grad.abs().sum() == 0


def test_equal_points_are_scored():
    model = small_model("s3dis_models/pointnet2_sem_ssg").eval()
    batch = batch_of("s3dis_models/pointnet2_sem_ssg")
    scores = model({**batch, "point_clouds": torch.zeros_like(batch["point_clouds"])}).logits
    assert torch.isfinite(scores).all() and torch.allclose(scores, scores[:1, :1].expand_as(scores), atol=1e-5)
