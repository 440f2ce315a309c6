import json
import math

import numpy as np
import pytest
import torch
import yaml

from pcdet.models.dense_heads.anchor_head_single import AnchorHeadSingle, AnchorPreds
from pcdet.structures.boxes import wrap_angle
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import construct

AREA = (0.0, 0.0, -3.0, 8.0, 8.0, 1.0)


def block(name, **changes):
    return {
        "class_name": name,
        "anchor_sizes": [[4.0, 2.0, 1.5]],
        "anchor_rotations": [0, 1.57],
        "anchor_bottom_heights": [-1.75],
        "align_center": True,
        "feature_map_stride": 2,
        "matched_threshold": 0.6,
        "unmatched_threshold": 0.45,
    } | changes


def settings(classes=("Car", "Van"), assigner=(), loss=(), **changes):
    return {
        "ANCHOR_GENERATOR_CONFIG": [block(name) for name in classes],
        "TARGET_ASSIGNER_CONFIG": {"NAME": "AxisAlignedTargetAssigner"} | dict(assigner),
        "LOSS_CONFIG": {"LOSS_WEIGHTS": {"cls_weight": 1.0, "loc_weight": 2.0, "dir_weight": 0.2}} | dict(loss),
        "USE_DIRECTION_CLASSIFIER": True,
        "DIR_OFFSET": 0.78539,
        "NUM_DIR_BINS": 2,
    } | changes


def head_of(options, classes=("Car", "Van")) -> AnchorHeadSingle:
    info = DatasetInfo(classes, ("x", "y", "z"), AREA, (1.0, 1.0, 4.0), (8, 8, 1), 5)
    return construct(AnchorHeadSingle, options, info, {"spatial_features_2d": 16})


CAR = [3.0, 5.0, -1.0, 4.0, 2.0, 1.5, 0.0, 1.0]  # exactly the anchor of row 2, column 1


def zero_preds(head, scenes=1) -> AnchorPreds:
    cells = (scenes, 4, 4)
    return AnchorPreds(*(torch.zeros(*cells, 4 * n, requires_grad=True) for n in (head.num_class, 7, 2)))


def test_predictions_have_their_shapes_and_a_low_prior():
    head = head_of(settings())
    preds = head(torch.zeros(2, 16, 4, 4))
    assert [tuple(p.shape) for p in preds] == [(2, 4, 4, 8), (2, 4, 4, 28), (2, 4, 4, 8)]
    torch.testing.assert_close(preds.cls_preds.sigmoid(), torch.full((2, 4, 4, 8), 0.01))
    assert head_of(settings(USE_DIRECTION_CLASSIFIER=False))(torch.zeros(1, 16, 4, 4)).dir_cls_preds is None


def test_predictions_are_those_of_the_convolutions():
    head = head_of(settings())
    x = torch.randn(2, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    for pred, layer in zip(head(x), (head.conv_cls, head.conv_box, head.conv_dir_cls), strict=True):
        torch.testing.assert_close(pred, layer(x).permute(0, 2, 3, 1))


def test_the_loss_by_hand():
    """One car on its anchor, all predictions zero: class probability 1/2, box right, direction undecided."""
    head = head_of(settings())
    targets = head.assign(torch.tensor([[CAR]]))
    place = (2 * 4 + 1) * 4
    assert targets.positives.tolist() == [place]
    assert torch.equal(targets.codes, torch.zeros(1, 7))
    losses = head.loss(zero_preds(head), targets)
    # 64 anchors of 2 classes, none ignored: one positive (alpha 1/4), 127 negatives (3/4), each times 1/4 log 2.
    assert (targets.labels < 0).sum() == 0
    assert losses["rpn_loss_cls"].item() == pytest.approx((0.25 + 127 * 0.75) * 0.25 * math.log(2), rel=1e-5)
    assert losses["rpn_loss_loc"].item() == 0
    assert losses["rpn_loss_dir"].item() == pytest.approx(0.2 * math.log(2), rel=1e-5)


def test_box_loss_by_hand():
    """Half a metre up is 1/3 of the anchor's height: 2 * (1/3 - 1/18)."""
    head = head_of(settings())
    box = torch.tensor([[CAR]])
    box[..., 2] += 0.5
    assert head.loss(zero_preds(head), head.assign(box))["rpn_loss_loc"].item() == pytest.approx(2 * (1 / 3 - 1 / 18))
    plain = head_of(settings(loss={"REG_LOSS_TYPE": "WeightedL1Loss"}))
    assert plain.loss(zero_preds(plain), plain.assign(box))["rpn_loss_loc"].item() == pytest.approx(2 / 3)


def test_scenes_count_alike_and_without_boxes_nothing_is_to_be_placed():
    head = head_of(settings())
    boxes = torch.tensor([[CAR], [[0.0] * 8]])
    boxes[0, 0, 2] += 0.5
    losses = head.loss(zero_preds(head, 2), head.assign(boxes))
    assert losses["rpn_loss_loc"].item() == pytest.approx(1 / 3 - 1 / 18)  # half of the other test's
    preds = zero_preds(head, 2)
    empty = head.loss(preds, head.assign(torch.zeros(2, 0, 8)))
    assert empty["rpn_loss_loc"].item() == empty["rpn_loss_dir"].item() == 0
    sum(empty.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in preds)


@pytest.mark.parametrize(
    "heading, wanted", [(0.0, 1), (0.7853, 1), (0.79, 0), (2.0, 0), (3.9, 0), (3.95, 1), (-1.0, 1)]
)
def test_direction_bins_start_at_the_offset(heading, wanted):
    head = head_of(settings())
    box = torch.tensor([[CAR]])
    targets = head.assign(box)
    targets = targets._replace(boxes=targets.boxes + torch.tensor([0, 0, 0, 0, 0, 0, heading]))
    preds = zero_preds(head)
    preds.dir_cls_preds.data.view(-1, 2)[:, wanted] = 20
    assert head.loss(preds, targets)["rpn_loss_dir"].item() < 1e-6


@pytest.mark.parametrize("coder", ["ResidualCoder", "PreviousResidualDecoder"])
@pytest.mark.parametrize("heading", [-3.1, -1.6, -0.2, 0.0, 0.78, 0.8, 1.5, 2.9, 3.1])
def test_decoding_undoes_assigning(heading, coder):
    """Boxes decoded from the targets are the labelled boxes, whichever way they face."""
    head = head_of(settings(assigner={"BOX_CODER": coder}))
    box = torch.tensor([[CAR]])
    box[..., 6] = heading
    targets = head.assign(box)
    assert len(targets.positives)
    preds = zero_preds(head)
    preds.box_preds.data.view(-1, 7)[targets.positives] = targets.codes
    turned = -heading - math.pi / 2 if coder == "PreviousResidualDecoder" else heading
    offset = (turned - 0.78539) % (2 * math.pi)
    preds.dir_cls_preds.data.view(-1, 2)[:, int(offset // math.pi)] = 1
    [scene] = head.decode(preds)
    decoded = scene.boxes[targets.positives]
    wanted = box[0].expand(len(decoded), -1)
    torch.testing.assert_close(decoded[:, :6], wanted[:, :6], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded[:, 6].sin(), wanted[:, 6].sin(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded[:, 6].cos(), wanted[:, 6].cos(), rtol=1e-4, atol=1e-4)


def test_candidates_are_one_entry_a_scene_with_all_anchors():
    head = head_of(settings())
    preds = AnchorPreds(*(torch.randn(2, 4, 4, 4 * n, generator=torch.Generator().manual_seed(n)) for n in (2, 7, 2)))
    scenes = head.decode(preds)
    assert [scene.boxes.shape for scene in scenes] == [(64, 7)] * 2
    assert scenes[0].labels is None
    for scene, logits in zip(scenes, preds.cls_preds, strict=True):
        assert torch.equal(scene.logits, logits.reshape(64, 2))


def test_without_a_direction_classifier_half_a_turn_costs():
    box = torch.tensor([[CAR]])
    box[..., 6] = math.pi
    preds = zero_preds(head_of(settings()))
    blind = head_of(settings(USE_DIRECTION_CLASSIFIER=False))
    loss = blind.loss(preds._replace(dir_cls_preds=None), blind.assign(box))
    assert loss.keys() == {"rpn_loss_cls", "rpn_loss_loc"}
    assert loss["rpn_loss_loc"].item() == pytest.approx(2 * (math.pi - 1 / 18))
    facing = head_of(settings())
    assert facing.loss(preds, facing.assign(box))["rpn_loss_loc"].item() == pytest.approx(0, abs=1e-6)


def test_sine_and_cosine_codes():
    head = head_of(settings(assigner={"BOX_CODER_CONFIG": {"encode_angle_by_sincos": True}}))
    assert head.conv_box.out_channels == 4 * 8
    box = torch.tensor([[CAR]])
    box[..., 6] = math.pi
    targets = head.assign(box)
    preds = zero_preds(head)._replace(box_preds=torch.zeros(1, 4, 4, 32))
    loss = head.loss(preds, targets)["rpn_loss_loc"]
    assert loss.item() == pytest.approx(2 * (2 - 1 / 18), rel=1e-5)  # the cosine differs by 2


def test_headings_of_older_checkpoints_turn_clockwise():
    """PreviousResidualDecoder: an anchor's own box, predicted with heading 0, looks along -y here."""
    options = settings(USE_DIRECTION_CLASSIFIER=False, assigner={"BOX_CODER": "PreviousResidualDecoder"})
    head = head_of(options)
    boxes = head.decode(zero_preds(head)._replace(dir_cls_preds=None))[0].boxes
    wanted = wrap_angle(torch.tensor([-math.pi / 2, -1.57 - math.pi / 2]))
    torch.testing.assert_close(boxes[:, 6], wanted.repeat(len(boxes) // 2))
    torch.testing.assert_close(boxes[:, :6], head.flat_anchors()[:, :6])


def test_class_agnostic_heads_know_one_class():
    head = head_of(settings(CLASS_AGNOSTIC=True))
    van = torch.tensor([[CAR[:7] + [2.0]]])
    preds = zero_preds(head)
    assert preds.cls_preds.shape[-1] == 4
    preds.cls_preds.data -= 20
    targets = head.assign(van)
    preds.cls_preds.data.view(-1)[targets.positives] = 20
    assert head.loss(preds, targets)["rpn_loss_cls"].item() < 1e-6


def test_weights_by_examples():
    """NORM_BY_NUM_EXAMPLES divides a box's loss by the judged anchors of its scene."""
    options = {"NORM_BY_NUM_EXAMPLES": True, "POS_FRACTION": 0.5, "SAMPLE_SIZE": 16}
    head = head_of(settings(assigner=options))
    assert head.samples_anchors
    targets = head.assign(torch.tensor([[CAR]]), torch.Generator().manual_seed(0))
    assert (targets.labels >= 0).sum() == 16
    assert targets.weights.tolist() == [1 / 16]


def test_half_precision_predictions_give_losses_in_full_precision():
    head = head_of(settings())
    preds = AnchorPreds(*(p.detach().bfloat16() for p in zero_preds(head)))
    assert all(term.dtype == torch.float32 for term in head.loss(preds, head.assign(torch.tensor([[CAR]]))).values())
    assert head.decode(preds)[0].boxes.dtype == torch.float32


def test_a_map_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"\(5, 4\) cells along y and x, the anchors \(4, 4\)"):
        head_of(settings())(torch.zeros(1, 16, 5, 4))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ANCHOR_GENERATOR_CONFIG": [block("Car"), block("Vna")]}, "'Vna' is not in CLASS_NAMES. Did you mean 'Van'"),
        ({"ANCHOR_GENERATOR_CONFIG": [block("Car")]}, r"no block for \['Van'\]"),
        ({"ANCHOR_GENERATOR_CONFIG": [block("Car"), block("Van", feature_map_stride=4)]}, "one feature_map_stride"),
        ({"ANCHOR_GENERATOR_CONFIG": [block("Car", matched_threshold=0.3), block("Van")]}, "the second not below"),
        ({"LOSS_CONFIG": {"LOSS_WEIGHTS": {"code_weights": [1.0] * 6}}}, "code_weights has 6 numbers"),
        ({"NUM_DIR_BIN": 2}, "takes no option NUM_DIR_BIN. Did you mean 'NUM_DIR_BINS'"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        head_of(settings(**changes))


@pytest.mark.parametrize("name", ["pointpillar", "second"])
def test_recorded_losses_on_random_predictions(name, shared, root):
    """Recorded with predictions randn * 0.5 of one generator, class, box, direction in this order."""
    record = json.loads((shared / "oracles/openpcdet_data/targets.json").read_text())[name]["loss_seed0"]
    boxes = np.load(shared / "oracles/openpcdet_data/targets.npz")[f"{name}_gt_boxes"]
    options = yaml.safe_load((root / f"cfgs/kitti_models/{name}.yaml").read_text())["MODEL"]["DENSE_HEAD"]
    grids = {
        "pointpillar": ((0, -39.68, -3, 69.12, 39.68, 1), (0.16, 0.16, 4), (432, 496, 1)),
        "second": ((0, -40, -3, 70.4, 40, 1), (0.05, 0.05, 0.1), (1408, 1600, 40)),
    }
    info = DatasetInfo(("Car", "Pedestrian", "Cyclist"), ("x", "y", "z", "i"), *grids[name])
    head = construct(AnchorHeadSingle, options, info, {"spatial_features_2d": 4})
    draw = torch.Generator().manual_seed(0)
    ny, nx = head.anchors.shape[:2]
    preds = AnchorPreds(*(torch.randn(3, ny, nx, 6 * n, generator=draw) * 0.5 for n in (3, 7, 2)))
    losses = head.loss(preds, head.assign(torch.from_numpy(boxes)))
    for key, value in losses.items():
        assert value.item() == pytest.approx(record[key], rel=1e-4), key
