import json
import math

import pytest
import torch

from pcdet.models.registry import ROI_HEADS
from pcdet.models.roi_heads.grid_points import roi_grid_points
from pcdet.models.roi_heads.pvrcnn_head import PVRCNNHead
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import construct

INFO = DatasetInfo(("Car", "Pedestrian"), ("x", "y", "z"), (0.0, -4.0, -2.0, 8.0, 4.0, 2.0))
GT = torch.tensor(
    [[[4.0, 0, 0, 2, 1, 1, 0.3, 1], [6, 2, 0, 2, 1, 1, 2.0, 2]], [[3, -1, 0, 2, 1, 1, 1.0, 1], [0.0] * 8]]
)
STACK = {"GRID_SIZE": 3, "MLPS": [[6], [4]], "POOL_RADIUS": [0.8, 1.6], "NSAMPLE": [4, 8], "POOL_METHOD": "max_pool"}
VECTOR = {
    "GRID_SIZE": 3,
    "NAME": "VectorPoolAggregationModuleMSG",
    "NUM_GROUPS": 1,
    "LOCAL_AGGREGATION_TYPE": "voxel_random_choice",
    "NUM_REDUCED_CHANNELS": 5,
    "NUM_CHANNELS_OF_LOCAL_AGGREGATION": 3,
    "MSG_POST_MLPS": [7],
    "GROUP_CFG_0": {
        "NUM_LOCAL_VOXEL": [2, 2, 2],
        "MAX_NEIGHBOR_DISTANCE": 0.8,
        "NEIGHBOR_NSAMPLE": 32,
        "POST_MLPS": [6],
    },
}


@pytest.fixture
def make_head(roi_options):
    def make(pool=STACK, channels=5, **changes) -> PVRCNNHead:
        torch.manual_seed(0)
        options = {"shared_fc": [8, 8], "cls_fc": [8, 8], "reg_fc": [8, 8], "dp_ratio": 0.3, "roi_grid_pool": pool}
        return PVRCNNHead(INFO, {"point_features": channels}, **roi_options() | options | changes)

    return make


def keypoints(counts, seed=0):
    draw = torch.Generator().manual_seed(seed)
    scene = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    xyz = torch.rand(len(scene), 3, generator=draw) * torch.tensor([8.0, 8, 2]) - torch.tensor([0.0, 4, 1])
    return {
        "point_coords": torch.cat([scene[:, None].float(), xyz], dim=1),
        "point_features": torch.randn(len(scene), 5, generator=draw).requires_grad_(),
        "point_cls_scores": torch.rand(len(scene), generator=draw).requires_grad_(),
    }


def test_it_is_registered():
    assert ROI_HEADS["PVRCNNHead"] is PVRCNNHead


def test_grid_points_by_hand():
    """Two points an axis of a box 4 x 2 x 8, turned by a quarter: its own x points along y."""
    box = torch.tensor([[10.0, 20, 30, 4, 2, 8, math.pi / 2]])
    points = roi_grid_points(box, 2)[0]
    assert points.shape == (8, 3)
    torch.testing.assert_close(points[0], torch.tensor([10.5, 19.0, 28.0]))  # own frame: -1, -0.5, -2
    torch.testing.assert_close(points[1], torch.tensor([10.5, 19.0, 32.0]))  # z is fastest
    torch.testing.assert_close(points[4], torch.tensor([10.5, 21.0, 28.0]))  # x is slowest
    torch.testing.assert_close(points.mean(0), box[0, :3])


def test_grids_of_no_proposals():
    assert roi_grid_points(torch.zeros(0, 7), 3).shape == (0, 27, 3)


def test_predictions_from_the_pooled_grid(make_head, near_proposals):
    """The steps one after another: weighted features, pooled, channel-major, fully connected."""
    head, points, rois = make_head().eval(), keypoints([60, 40]), near_proposals(GT, 3).rois
    preds = head(rois, **points)
    assert preds.rcnn_cls.shape == (6, 1) and preds.rcnn_reg.shape == (6, 7)
    weighted = points["point_features"] * points["point_cls_scores"][:, None]
    for scene, first in ((0, 0), (1, 60)):
        rows = slice(first, first + (60, 40)[scene])
        xyz = points["point_coords"][rows, 1:].contiguous()
        for i, roi in enumerate(rois[scene]):
            grid = roi_grid_points(roi[None], 3)[0]
            counts = torch.tensor([len(xyz)]), torch.tensor([27])
            pooled = head.roi_grid_pool_layer(xyz, counts[0], grid, counts[1], weighted[rows])  # (27, 10)
            shared = head.shared_fc_layer(pooled.T.reshape(1, -1))
            torch.testing.assert_close(head.cls_layers(shared)[0], preds.rcnn_cls[scene * 3 + i], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(head.reg_layers(shared)[0], preds.rcnn_reg[scene * 3 + i], rtol=1e-4, atol=1e-5)


def test_points_of_no_score_are_as_good_as_zeros(make_head, near_proposals):
    head, points, rois = make_head().eval(), keypoints([60, 40]), near_proposals(GT, 3).rois
    points["point_cls_scores"] = torch.zeros(100)
    other = points | {"point_features": torch.randn(100, 5)}
    torch.testing.assert_close(head(rois, **points).rcnn_cls, head(rois, **other).rcnn_cls)


@pytest.mark.parametrize("pool", [STACK, VECTOR])
def test_everything_is_trained_and_the_scores_too(make_head, near_proposals, pool):
    head, points = make_head(pool).train(), keypoints([60, 40])
    targets = head.assign(near_proposals(GT, 8), GT, torch.Generator().manual_seed(0))
    losses = head.loss(head(targets.rois, **points), targets)
    sum(losses.values()).backward()
    assert losses["rcnn_loss_reg"] > 0
    for tensor in (points["point_features"], points["point_cls_scores"], *head.parameters()):
        assert tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("pool", [STACK, VECTOR])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("counts, rows", [([20, 0], 3), ([0, 0], 2), ([20, 10], 0), ([0, 9], 1)])
def test_scenes_without_points_and_without_proposals(make_head, pool, training, counts, rows):
    head, points = make_head(pool).train(training), keypoints(counts)
    preds = head(torch.zeros(2, rows, 7), **points)
    (preds.rcnn_cls.sum() + preds.rcnn_reg.sum()).backward()
    assert preds.rcnn_cls.shape == (2 * rows, 1) and preds.rcnn_reg.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("model", ["pv_rcnn", "pv_rcnn_plusplus_reproduced_by_community"])
def test_names_and_shapes_are_those_of_published_checkpoints(model, shared):
    name = f"kitti_models/{model}.yaml"
    facts = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())["state_dicts"][name]
    block = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())[name]["MODEL"]
    with torch.device("meta"):
        width = block["PFE"]["NUM_OUTPUT_FEATURES"]
        head = construct(PVRCNNHead, block["ROI_HEAD"], INFO, {"point_features": width})
    mine = {key: list(value.shape) for key, value in head.state_dict().items()}
    expected = {k.removeprefix("roi_head."): v for k, v in facts.items() if k.startswith("roi_head.")}
    assert mine == expected and list(mine) == list(expected)


def test_without_dropout_layers_keep_their_published_places(make_head):
    names = make_head(dp_ratio=0.0).state_dict()
    assert "shared_fc_layer.3.weight" in names and "cls_layers.4.weight" in names


def test_the_grid_needs_a_size(make_head):
    with pytest.raises(ValueError, match="ROI_GRID_POOL needs GRID_SIZE"):
        make_head({key: value for key, value in STACK.items() if key != "GRID_SIZE"})


@pytest.mark.parametrize("pool", [STACK, VECTOR])
def test_half_precision_stays_near(make_head, near_proposals, pool):
    head, points, rois = make_head(pool).eval(), keypoints([60, 40]), near_proposals(GT, 3).rois
    full = head(rois, **points).rcnn_cls
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = head(rois, **points).rcnn_cls
    torch.testing.assert_close(half.float(), full, rtol=0.1, atol=0.1)
