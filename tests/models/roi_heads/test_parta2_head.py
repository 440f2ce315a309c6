import json

import pytest
import torch
from torch import Tensor

from pcdet.models.build import _Channels
from pcdet.models.roi_heads.parta2_head import Cells, PartA2FCHead, PartA2Preds, _corner_cells
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car", "Pedestrian", "Cyclist"), ("x", "y", "z", "intensity"))
POOL = {"POOL_SIZE": 4, "NUM_FEATURES": 8, "MAX_POINTS_PER_VOXEL": 8}
GT = torch.tensor([[[5.0, 0, 0, 4, 2, 2, 0.3, 1], [9, 3, 0, 4, 2, 2, 0, 2]], [[5, 1, 0, 4, 2, 2, 2, 1], [0] * 8]])


@pytest.fixture
def make_head(roi_options):
    def make(channels=None, **changes) -> PartA2FCHead:
        torch.manual_seed(0)
        options = {
            "shared_fc": [8, 8],
            "cls_fc": [8, 8],
            "reg_fc": [8, 8],
            "dp_ratio": 0.3,
            "seg_mask_score_thresh": 0.3,
            "roi_aware_pool": POOL,
        }
        channels = channels or {"point_features": 6, "point_part_offset": 3}
        return PartA2FCHead(INFO, channels, **roi_options(), **(options | changes))

    return make


def points(count: int = 400, scenes: int = 2) -> dict[str, Tensor]:
    """Points around the boxes of GT, scene after scene."""
    draw = torch.Generator().manual_seed(0)
    low, size = torch.tensor([2.0, -2, -1]), torch.tensor([10.0, 6, 2])
    scene = torch.arange(count) * scenes // max(count, 1)
    xyz = low + size * torch.rand(count, 3, generator=draw)
    return {
        "point_coords": torch.cat([scene.float().unsqueeze(1), xyz], dim=1),
        "point_features": torch.randn(count, 6, generator=draw),
        "point_cls_scores": torch.rand(count, generator=draw),
        "point_part_offset": torch.rand(count, 3, generator=draw),
    }


@pytest.mark.parametrize("name, disable_part, threshold", [("PartA2", False, 0.3), ("PartA2_free", True, 0.0)])
def test_names_and_shapes_are_those_of_published_checkpoints(name, disable_part, threshold, make_head, shared):
    facts = json.loads((shared / "facts" / "openpcdet_state_dicts_kitti.json").read_text())
    entries = facts["state_dicts"][f"kitti_models/{name}.yaml"]
    expected = {k.removeprefix("roi_head."): v for k, v in entries.items() if k.startswith("roi_head.")}
    with torch.device("meta"):
        head = make_head(
            {"point_features": 16, "point_part_offset": 3},
            shared_fc=[256, 256, 256],
            cls_fc=[256, 256],
            reg_fc=[256, 256],
            disable_part=disable_part,
            seg_mask_score_thresh=threshold,
            roi_aware_pool={"POOL_SIZE": 12, "NUM_FEATURES": 128, "MAX_POINTS_PER_VOXEL": 128},
        )
    state = {k: list(v.shape) for k, v in head.state_dict().items()}
    assert state == expected and list(state) == list(expected)


def test_cells_by_hand(make_head):
    roi = torch.tensor([[[0.0, 0, 0, 4, 4, 4, 0]]])  # cells of 1 m, the first from -2 to -1
    coords = torch.tensor([[0.0, -1.5, -1.5, -1.5], [0, -1.4, -1.4, -1.4], [0, 1.5, 0.5, -0.5], [0, 9, 9, 9]])
    scores, parts = torch.tensor([0.5, 0.2, 0.3, 0.9]), torch.tensor([[0.2, 0.4, 0.6]]).repeat(4, 1)
    features = torch.tensor([[1.0, -1], [3, -3], [5, 7], [9, 9]])
    cells = make_head()._pool(roi, coords, features, scores, parts)
    assert cells.index.tolist() == [[0, 0, 0, 0], [0, 3, 2, 1]]
    # The second point's score is below the threshold, so its parts are 0.
    torch.testing.assert_close(cells.parts, torch.tensor([[0.1, 0.2, 0.3, 0.35], [0.2, 0.4, 0.6, 0.3]]))
    assert cells.features.tolist() == [[3, -1], [5, 7]]
    cells = make_head(disable_part=True, seg_mask_score_thresh=0.0)._pool(roi, coords, features, scores, None)
    torch.testing.assert_close(cells.parts[1], torch.tensor([1.5, 0.5, -0.5, 0.3]))


def test_first_cells_keep_what_they_hold():
    index = torch.tensor([[1, 0, 0, 0], [2, 3, 0, 0]])
    cells = _corner_cells(Cells(index, torch.ones(2, 4), torch.tensor([[5.0], [6.0]])), rows=3)
    assert cells.index.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0]]
    assert cells.features.tolist() == [[0], [5], [0]]
    assert cells.parts.sum(dim=1).tolist() == [0, 4, 0]


def test_two_scenes_are_two_of_one(make_head, near_proposals):
    head, cloud = make_head().eval(), points()
    rois = near_proposals(GT, 3).rois
    whole = head(rois, **cloud)
    for scene in (0, 1):
        own = cloud["point_coords"][:, 0] == scene
        alone = {key: value[own].clone() for key, value in cloud.items()}
        alone["point_coords"][:, 0] = 0
        preds = head(rois[scene : scene + 1], **alone)
        torch.testing.assert_close(preds.rcnn_cls, whole.rcnn_cls[3 * scene : 3 * scene + 3], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(preds.rcnn_reg, whole.rcnn_reg[3 * scene : 3 * scene + 3], rtol=1e-4, atol=1e-5)


def test_a_box_turned_with_its_points_has_the_same_cells(make_head):
    head, cloud = make_head(), points(200, scenes=1)
    roi = GT[:1, :1, :7]
    turned = roi.clone()
    turned[..., :2], turned[..., 6] = torch.stack([-roi[..., 1], roi[..., 0]], dim=-1), roi[..., 6] + torch.pi / 2
    coords = cloud["point_coords"][:, [0, 2, 1, 3]] * torch.tensor([1.0, -1, 1, 1])
    rest = [cloud[key] for key in ("point_features", "point_cls_scores", "point_part_offset")]
    first, second = head._pool(roi, cloud["point_coords"], *rest), head._pool(turned, coords, *rest)
    assert len(first.index) > 10
    assert torch.equal(first.index, second.index) and torch.equal(first.features, second.features)


def test_gradients_reach_parts_and_features_but_not_scores(make_head, near_proposals):
    head, cloud = make_head(), points()
    for key in ("point_features", "point_cls_scores", "point_part_offset"):
        cloud[key].requires_grad_()
    targets = head.assign(near_proposals(GT, 8), GT)
    head.loss(head(targets.rois, **cloud), targets)["rcnn_loss_cls"].backward()
    assert cloud["point_features"].grad.any() and cloud["point_part_offset"].grad.any()
    assert cloud["point_cls_scores"].grad is None


@pytest.mark.parametrize("count, rows", [(400, 8), (400, 1), (0, 8), (0, 1)])
def test_every_parameter_gets_a_finite_gradient(count, rows, make_head, near_proposals):
    head, cloud = make_head(), points(count)
    targets = head.assign(near_proposals(GT, rows), GT)
    preds = head(targets.rois, **cloud)
    assert preds.rcnn_judged == (count > 0)
    losses = head.loss(preds, targets)
    sum(losses.values()).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    if count == 0:
        assert all(loss.item() == 0 for loss in losses.values())
    else:
        assert all(loss.item() > 0 for loss in losses.values())
    assert all(buffer.isfinite().all() for buffer in head.buffers())


@pytest.mark.parametrize("scenes, rows", [(2, 0), (0, 4)])
def test_no_proposals(scenes, rows, make_head):
    preds: PartA2Preds = make_head().eval()(torch.zeros(scenes, rows, 7), **points(0))
    assert preds.rcnn_cls.shape == (0, 1) and preds.rcnn_reg.shape == (0, 7)


def test_a_first_stage_without_parts_is_named(make_head):
    channels = _Channels({"point_features": 6}, "MODEL.ROI_HEAD")
    with pytest.raises(ValueError, match="MODEL.ROI_HEAD reads 'point_part_offset'"):
        make_head(channels)
    make_head(channels, disable_part=True)
