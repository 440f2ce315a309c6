import math

import pytest
import torch
import torch.nn.functional as F

from pcdet.models.point_heads.base import PointTargets, class_scores
from pcdet.models.point_heads.point_head_box import PointBoxPreds, PointHeadBox
from pcdet.models.point_heads.point_head_simple import PointHeadSimple
from pcdet.models.point_heads.point_intra_part_head import PointIntraPartOffsetHead, PointPartPreds
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car", "Pedestrian", "Cyclist"), ("x", "y", "z", "intensity"))
CHANNELS = {"point_features": 6, "point_features_before_fusion": 10}
WIDTH = {"GT_EXTRA_WIDTH": [0.2, 0.2, 0.2]}
SIZES = [[3.9, 1.6, 1.56], [0.8, 0.6, 1.73], [1.76, 0.6, 1.73]]
BOXES = WIDTH | {"BOX_CODER": "PointResidualCoder", "BOX_CODER_CONFIG": {"use_mean_size": True, "mean_size": SIZES}}
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
LOSS = {"LOSS_REG": "WeightedSmoothL1Loss", "LOSS_WEIGHTS": {"code_weights": [1.0] * 8}}


def simple(**options) -> PointHeadSimple:
    defaults = {"cls_fc": [8], "class_agnostic": True, "target_config": WIDTH, "loss_config": {}}
    return PointHeadSimple(INFO, CHANNELS, **(defaults | options))


def box_head(**options) -> PointHeadBox:
    defaults = {"cls_fc": [8], "reg_fc": [8], "class_agnostic": False, "target_config": BOXES, "loss_config": LOSS}
    return PointHeadBox(INFO, CHANNELS, **(defaults | options))


def part_head(**options) -> PointIntraPartOffsetHead:
    defaults = {"cls_fc": [], "part_fc": [], "class_agnostic": True, "target_config": WIDTH, "loss_config": {}}
    return PointIntraPartOffsetHead(INFO, CHANNELS, **(defaults | options))


def part_and_box_head() -> PointIntraPartOffsetHead:
    lists = {"cls_fc": [8], "part_fc": [8], "reg_fc": [8]}
    return part_head(**lists, class_agnostic=False, target_config=BOXES, loss_config=LOSS)


HEADS = {"simple": simple, "box": box_head, "part": part_head, "part and box": part_and_box_head}


def scene(points: int = 40, boxes: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, coordinates and labelled boxes of two scenes."""
    draw = torch.Generator().manual_seed(0)
    coords = torch.rand(points, 4, generator=draw) * 4
    coords[:, 0] = torch.arange(points) % 2
    gt = torch.rand(2, boxes, 8, generator=draw) * 3 + 0.5
    gt[..., 7] = torch.arange(boxes) + 1
    return torch.randn(points, 6, generator=draw), coords, gt


def test_parameters_in_their_order():
    assert list(part_and_box_head().state_dict()) == [
        f"{stack}.{name}"
        for stack in ("cls_layers", "part_reg_layers", "box_layers")
        for name in ("0.weight", *(f"1.{n}" for n in NORM), "3.weight", "3.bias")
    ]
    assert {k: tuple(v.shape) for k, v in part_head().state_dict().items()} == {
        "cls_layers.0.weight": (1, 6),
        "cls_layers.0.bias": (1,),
        "part_reg_layers.0.weight": (3, 6),
        "part_reg_layers.0.bias": (3,),
    }
    before = simple(use_point_features_before_fusion=True)
    assert before.cls_layers[0].weight.shape == (8, 10)
    assert [head().predicts_boxes for head in HEADS.values()] == [False, True, False, True]


def test_features_before_fusion_are_used():
    head, fused, before = simple(use_point_features_before_fusion=True).eval(), torch.zeros(5, 6), torch.randn(5, 10)
    assert torch.equal(head(fused, before).point_cls_preds, head.cls_layers(before))
    assert torch.equal(simple().eval()(fused, before).point_cls_preds.std(dim=0), torch.zeros(1))


def test_scores_are_those_of_the_best_class():
    scores = class_scores(torch.tensor([[-5.0, 0.0], [math.log(3), -1.0]]))
    torch.testing.assert_close(scores, torch.tensor([0.5, 0.75]))


def test_losses_by_hand():
    head = part_and_box_head()
    head.loss_weights = {"point_cls_weight": 2.0, "point_part_weight": 3.0, "point_box_weight": 4.0}
    labels, positives = torch.tensor([0, 3, -1, 1]), torch.tensor([1, 3])
    targets = PointTargets(labels, positives, torch.tensor([[0.0, 0.5, 1.0]] * 2), torch.zeros(2, 8))
    zeros = torch.zeros(4, 3)
    codes = torch.zeros(4, 8)
    codes[3, 0] = 1.0  # 1 - 1/18 by the smooth L1 loss
    codes[0] = 9.0  # background
    preds = PointPartPreds(zeros, zeros[:, 0], zeros, zeros, codes)
    losses = head.loss(preds, targets)
    assert list(losses) == ["point_loss_cls", "point_loss_part", "point_loss_box"]
    # Probability 0.5 everywhere: 2 logits that should be 1, 3 * 3 - 2 that should be 0; the third point is not judged.
    focal = (2 * 0.25 + 7 * 0.75) * 0.25 * math.log(2) / 2
    assert losses["point_loss_cls"].item() == pytest.approx(2 * focal)
    assert losses["point_loss_part"].item() == pytest.approx(3 * math.log(2))
    assert losses["point_loss_box"].item() == pytest.approx(4 * (1 - 1 / 18) / 2)


@pytest.mark.parametrize("name, wanted", [("smooth-l1", 0.125), ("l1", 0.5), ("WeightedSmoothL1Loss", 0.5 - 1 / 18)])
def test_losses_of_boxes(name, wanted):
    head = box_head(loss_config={"LOSS_REG": name, "LOSS_WEIGHTS": {"code_weights": [0.5] + [1.0] * 7}})
    codes = torch.tensor([[1.0] + [0.0] * 7])
    targets = PointTargets(torch.tensor([1]), torch.tensor([0]), torch.zeros(1, 3), torch.zeros(1, 8))
    preds = PointBoxPreds(torch.zeros(1, 3), torch.zeros(1), codes)
    assert head.loss(preds, targets)["point_loss_box"].item() == pytest.approx(wanted)


def test_targets_of_a_class_agnostic_head():
    _, coords, gt = scene()
    several = part_and_box_head().assign(coords, gt)
    one = part_head().assign(coords, gt)
    assert several.labels.max() == 2 and one.labels.max() == 1
    assert torch.equal(several.labels.clamp(max=1), one.labels)
    assert one.codes is None and torch.equal(one.parts, several.parts)
    assert len(several.codes) == len(several.positives) == len(one.parts) > 0


def test_wanted_codes_decode_to_the_labelled_boxes():
    _, coords, gt = scene()
    gt[..., 6] -= 3
    head = box_head()
    targets = head.assign(coords, gt)
    codes, logits = torch.zeros(len(coords), 8), torch.full((len(coords), 3), -9.0)
    codes[targets.positives] = targets.codes
    logits[targets.positives, targets.labels[targets.positives] - 1] = 9.0
    scenes = head.decode(PointBoxPreds(logits, logits[:, 0], codes), coords, batch_size=3)
    assert [len(found.boxes) for found in scenes] == [20, 20, 0]
    for i, found in enumerate(scenes[:2]):
        own = coords[:, 0] == i
        labels, boxes = targets.labels[own], found.boxes[targets.labels[own] > 0]
        assert torch.equal(found.logits, logits[own])
        wanted = gt[i, labels[labels > 0] - 1]
        torch.testing.assert_close(boxes[:, :6], wanted[:, :6], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(boxes[:, 6].sin(), wanted[:, 6].sin(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("points, boxes", [(40, 2), (40, 0), (1, 1), (0, 1)])
def test_every_parameter_gets_a_finite_gradient(name, points, boxes):
    head = HEADS[name]()
    features, coords, gt = scene(points, boxes)
    preds = head(features)
    losses = head.loss(preds, head.assign(coords, gt))
    sum(losses.values()).backward()
    for parameter in head.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
    if points == 0:
        assert all(loss.item() == 0 for loss in losses.values())
    if boxes == 0:
        assert all(loss.item() == 0 for key, loss in losses.items() if key != "point_loss_cls")
    if head.predicts_boxes:
        found = head.eval().decode(head(features), coords, batch_size=2)
        assert sum(len(part.boxes) for part in found) == points


def test_a_learned_part_head_knows_parts():
    head = part_head()
    features, coords, gt = scene()
    features = F.pad(coords[:, 1:], (0, 3))
    targets = head.assign(coords, gt[:, :1])
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    first = None
    for _ in range(100):
        losses = head.loss(head(features), targets)
        first = first or losses["point_loss_part"].item()
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    assert losses["point_loss_part"].item() < 0.9 * first


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: box_head(loss_config={"LOSS_WEIGHTS": {"code_weights": [1.0] * 7}}), "code_weights has 7"),
        (lambda: box_head(loss_config={"LOSS_REG": "l2"}), "LOSS_REG may be smooth-l1"),
        (lambda: box_head(target_config=WIDTH), "mean_size"),
        (lambda: box_head(target_config=WIDTH | {"BOX_CODER_CONFIG": {"mean_size": SIZES[:2]}}), "2 rows for 3"),
    ],
)
def test_options_that_do_not_fit_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
