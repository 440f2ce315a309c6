import json
import math

import numpy as np
import pytest
import torch

from pcdet.models.assigners.proposal_targets import RoiTargets
from pcdet.models.candidates import Proposals
from pcdet.models.roi_heads.second_head import RoiIouPreds, SECONDHead
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car", "Van"), ("x", "y", "z"), (0.0, -4.0, -2.0, 10.0, 4.0, 2.0), (0.5, 0.5, 0.2), (20, 16, 20), 5)
GT = torch.tensor(
    [[[4.0, 0, 0, 2, 1, 1, 0.3, 1], [6, 2, 0, 2, 1, 1, 2.0, 2]], [[3, -1, 0, 2, 1, 1, 1.0, 1], [0.0] * 8]]
)
CELLS = (8, 10)  # of the map along y and x, one metre each


@pytest.fixture
def make_head(roi_options):
    def make(width=2, info=INFO, loss_config=None, **changes) -> SECONDHead:
        torch.manual_seed(0)
        pool = {"GRID_SIZE": 3, "IN_CHANNEL": 2, "DOWNSAMPLE_RATIO": 2}
        options = {"shared_fc": [8, 8], "iou_fc": [8, 8], "dp_ratio": 0.3, "roi_grid_pool": pool} | changes
        shared = roi_options(loss_config={"IOU_LOSS": "BinaryCrossEntropy"} | (loss_config or {}))
        return SECONDHead(info, {"spatial_features_2d": width}, **shared, **options)

    return make


def ramp(scenes=1) -> torch.Tensor:
    """A map whose channels are the column and the row of a cell."""
    y, x = torch.meshgrid(torch.arange(8.0), torch.arange(10.0), indexing="ij")
    return torch.stack([x, y]).expand(scenes, 2, *CELLS)


def targets_of(labels) -> RoiTargets:
    labels = torch.tensor(labels).view(1, -1)
    fields = dict.fromkeys(RoiTargets._fields, torch.zeros_like(labels))
    return RoiTargets(**fields | {"rcnn_cls_labels": labels})


def test_names_and_shapes_are_those_of_published_checkpoints(make_head, shared):
    facts = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())["state_dicts"]
    entries = facts["kitti_models/second_iou.yaml"]
    expected = {k.removeprefix("roi_head."): v for k, v in entries.items() if k.startswith("roi_head.")}
    pool = {"GRID_SIZE": 7, "IN_CHANNEL": 512, "DOWNSAMPLE_RATIO": 8}
    with torch.device("meta"):
        head = make_head(512, shared_fc=[256, 256], iou_fc=[256, 256], roi_grid_pool=pool)
    state = {k: list(v.shape) for k, v in head.state_dict().items()}
    assert state == expected
    assert list(state) == list(expected)


def test_places_of_the_samples_by_hand(make_head):
    """A proposal 3 m long, 1.5 m wide at x = 4.5, y = 0.25: from 3 to 6 and from -0.5 to 1, so from 3.5 cells to 5.

    OpenPCDet takes the corner of the range for the centre of the first cell.
    """
    pooled = make_head()._pool(torch.tensor([[[4.5, 0.25, 0, 3.0, 1.5, 1, 0]]]), ramp()).view(2, 3, 3)
    torch.testing.assert_close(pooled[0], torch.tensor([3, 4.5, 6]).expand(3, 3))
    torch.testing.assert_close(pooled[1], torch.tensor([3.5, 4.25, 5]).view(3, 1).expand(3, 3))
    single = {"GRID_SIZE": 1, "IN_CHANNEL": 2, "DOWNSAMPLE_RATIO": 2}
    pooled = make_head(roi_grid_pool=single)._pool(torch.tensor([[[4.5, 0.25, 0, 3.0, 1.5, 1, 0.7]]]), ramp())
    torch.testing.assert_close(pooled, torch.tensor([[4.5, 4.25]]))


@pytest.mark.parametrize("size", [3, 7])
def test_samples_are_those_of_an_affine_grid(make_head, size):
    """What OpenPCDet calls, written with torch's own functions."""
    pool = {"GRID_SIZE": size, "IN_CHANNEL": 2, "DOWNSAMPLE_RATIO": 2}
    rois = torch.tensor([[4.5, 0.25, 0, 3.0, 1.5, 1, 0.4], [1.0, -3, 0, 4, 2, 1, -2.5], [8.0, 3, 0, 1, 5, 1, 1.5]])
    maps = torch.randn(1, 2, *CELLS, generator=torch.Generator().manual_seed(0))
    low, high = rois[:, :2] - rois[:, 3:5] / 2, rois[:, :2] + rois[:, 3:5] / 2
    low, high = low - torch.tensor([0.0, -4.0]), high - torch.tensor([0.0, -4.0])  # cells are 1 m
    theta = torch.zeros(3, 2, 3)
    for axis, cells in enumerate((10, 8)):
        half = (high - low)[:, axis] / (cells - 1)
        cos, sin = rois[:, 6].cos(), rois[:, 6].sin()
        theta[:, axis, 0], theta[:, axis, 1] = (half * cos, -half * sin) if axis == 0 else (half * sin, half * cos)
        theta[:, axis, 2] = ((low + high)[:, axis] - cells + 1) / (cells - 1)
    grid = torch.nn.functional.affine_grid(theta, [3, 2, size, size], align_corners=True)
    wanted = torch.nn.functional.grid_sample(maps.expand(3, 2, *CELLS), grid, align_corners=True)
    found = make_head(roi_grid_pool=pool)._pool(rois.unsqueeze(0), maps)
    torch.testing.assert_close(found, wanted.flatten(1), rtol=1e-4, atol=1e-5)


def test_a_quarter_turn_exchanges_the_axes_of_the_grid(make_head):
    """The grid's first axis then points to -x and the second to y, along the sides as they are scaled."""
    rois = torch.tensor([[[4.5, 0.25, 0, 3.0, 1.5, 1, 0], [4.5, 0.25, 0, 3.0, 1.5, 1, math.pi / 2]]])
    straight, turned = make_head()._pool(rois, ramp()).view(2, 2, 3, 3)
    torch.testing.assert_close(turned[0], straight[0].T.flip(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(turned[1], straight[1].T, rtol=1e-4, atol=1e-4)


def test_outside_the_map_is_zero(make_head):
    rois = torch.tensor([[[400.0, 0, 0, 3, 1.5, 1, 0], [0.0] * 7]])
    pooled = make_head()._pool(rois, ramp() + 1)
    assert not pooled[0].any()
    assert pooled.isfinite().all()


def test_scenes_see_their_own_map(make_head):
    head = make_head().eval()
    maps = torch.randn(2, 2, *CELLS, generator=torch.Generator().manual_seed(0))
    rois = GT[..., :7] + 0.1
    together = head(rois, maps).rcnn_iou.view(2, 2)
    for scene in range(2):
        alone = head(rois[scene : scene + 1], maps[scene : scene + 1]).rcnn_iou
        torch.testing.assert_close(alone[:, 0], together[scene])


@pytest.mark.parametrize(
    "kind, wanted",
    [
        ("BinaryCrossEntropy", (math.log(1 + math.exp(-2)) + math.log(2)) / 2),
        ("L2", (1 + 0.25) / 2),
        ("smoothL1", (1 - 1 / 18 + 0.5 - 1 / 18) / 2),
        (
            "focalbce",
            # 1/4 (1 - p)^2 log 1/p at p = sigmoid(2); at p = 1/2 the target 1/2 gives miss and balance 1/2 each.
            (0.25 * (1 - 1 / (1 + math.exp(-2))) ** 2 * math.log(1 + math.exp(-2)) + 0.5 * 0.25 * math.log(2)) / 2,
        ),
    ],
)
def test_losses_by_hand(make_head, kind, wanted):
    """Logits 2, 0, 7 for the overlaps 1, 1/2 and one that is not judged."""
    head = make_head(loss_config={"IOU_LOSS": kind, "LOSS_WEIGHTS": {"rcnn_iou_weight": 3.0}})
    preds = RoiIouPreds(torch.tensor([[2.0], [0.0], [7.0]]))
    losses = head.loss(preds, targets_of([1.0, 0.5, -1.0]))
    assert losses.keys() == {"rcnn_loss_iou"}
    assert losses["rcnn_loss_iou"].item() == pytest.approx(3 * wanted, rel=1e-5)
    assert head.loss(preds, targets_of([-1.0] * 3))["rcnn_loss_iou"].item() == 0


def test_recorded_loss(make_head, shared):
    arrays = np.load(shared / "oracles/openpcdet_models/second_iou.A.npz")
    record = json.loads((shared / "oracles/openpcdet_models/second_iou.A.json").read_text())["train"]["tb_dict"]
    fields = {name: torch.from_numpy(arrays[f"train.roi_targets.{name}"]) for name in RoiTargets._fields}
    preds = RoiIouPreds(torch.from_numpy(arrays["train.roi_targets.rcnn_iou"]))
    found = make_head().loss(preds, RoiTargets(**fields))["rcnn_loss_iou"].item()
    assert found == pytest.approx(record["rcnn_loss_iou"], rel=1e-5)


@pytest.mark.parametrize("boxes", [2, 0])
def test_every_parameter_gets_a_finite_gradient_and_the_map_none(make_head, near_proposals, boxes):
    head = make_head().train()
    maps = torch.randn(2, 2, *CELLS, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = head.assign(near_proposals(GT, 12), GT[:, :boxes], torch.Generator().manual_seed(0))
    sum(head.loss(head(targets.rois, maps), targets).values()).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    assert maps.grad is None


def test_boxes_and_classes_stay_the_proposals(make_head):
    head = make_head().eval()
    rois = torch.cat([GT[..., :7], torch.zeros(2, 1, 7)], dim=1)
    proposals = Proposals(rois, torch.zeros(2, 3), torch.tensor([[1, 2, 1], [1, 1, 1]]))
    preds = head(rois, ramp(2))
    first, second = head.decode(preds, proposals)
    assert torch.equal(first.boxes, GT[0, :, :7])
    assert torch.equal(first.logits, preds.rcnn_iou[:2])
    assert first.labels.tolist() == [1, 2]
    assert torch.equal(second.boxes, GT[1, :1, :7])
    assert head(rois[:, :0], ramp(2)).rcnn_iou.shape == (0, 1)


def test_half_precision(make_head):
    head = make_head().eval()
    rois, maps = GT[..., :7] + 0.1, torch.randn(2, 2, *CELLS, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        preds = head(rois, maps.bfloat16())
    torch.testing.assert_close(preds.rcnn_iou.float(), head(rois, maps).rcnn_iou, rtol=0.1, atol=0.05)


def test_another_width_of_the_map_is_refused(make_head):
    with pytest.raises(ValueError, match="IN_CHANNEL is 2, but the map has 5 channels"):
        make_head(width=5)
