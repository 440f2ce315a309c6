import copy
import math

import pytest
import torch

from pcdet.models.dense_heads.anchor_head_multi import AnchorHeadMulti, MultiHeadPreds
from pcdet.models.dense_heads.anchor_head_single import AnchorHeadSingle
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import construct

AREA = (0.0, 0.0, -3.0, 8.0, 8.0, 1.0)
CLASSES = ("Car", "Van", "Cyclist")
CAR = [3.0, 5.0, -1.0, 4.0, 2.0, 1.5, 0.0, 1.0]  # exactly the anchor of row 2, column 1
CYCLIST = [5.0, 1.0, -1.0, 2.0, 1.0, 1.5, 0.0, 3.0]  # row 0, column 2


def block(name, size):
    return {
        "class_name": name,
        "anchor_sizes": [size],
        "anchor_rotations": [0, 1.57],
        "anchor_bottom_heights": [-1.75],
        "align_center": True,
        "feature_map_stride": 2,
        "matched_threshold": 0.6,
        "unmatched_threshold": 0.45,
    }


BLOCKS = [block("Car", [4.0, 2.0, 1.5]), block("Van", [5.0, 2.0, 2.0]), block("Cyclist", [2.0, 1.0, 1.5])]
SEPARATE_REG = {"NUM_MIDDLE_CONV": 1, "NUM_MIDDLE_FILTER": 6, "REG_LIST": ["reg:2", "height:1", "size:3", "angle:1"]}


def settings(weights=(), assigner=(), **changes):
    return {
        "ANCHOR_GENERATOR_CONFIG": copy.deepcopy(BLOCKS),
        "RPN_HEAD_CFGS": [{"HEAD_CLS_NAME": ["Car", "Van"]}, {"HEAD_CLS_NAME": ["Cyclist"]}],
        "TARGET_ASSIGNER_CONFIG": {"NAME": "AxisAlignedTargetAssigner"} | dict(assigner),
        "LOSS_CONFIG": {"LOSS_WEIGHTS": {"cls_weight": 1.0, "loc_weight": 2.0, "dir_weight": 0.2} | dict(weights)},
        "USE_MULTIHEAD": True,
        "SEPARATE_MULTIHEAD": True,
        "USE_DIRECTION_CLASSIFIER": True,
        "DIR_OFFSET": 0.78539,
    } | changes


def info_of(classes=CLASSES):
    return DatasetInfo(classes, ("x", "y", "z"), AREA, (1.0, 1.0, 4.0), (8, 8, 1), 5)


def head_of(options) -> AnchorHeadMulti:
    torch.manual_seed(0)
    return construct(AnchorHeadMulti, options, info_of(), {"spatial_features_2d": 16})


def features(scenes=2, seed=0):
    return torch.randn(scenes, 16, 4, 4, generator=torch.Generator().manual_seed(seed))


def zero_preds(head, scenes=1):
    widths = [2, 1] if head.separate_multihead else [head.num_class] * 2
    sizes = [4 * 16, 2 * 16]  # kinds times cells

    def zeros(columns):
        return [torch.zeros(scenes, n, k, requires_grad=True) for n, k in zip(sizes, columns, strict=True)]

    return MultiHeadPreds(zeros(widths), zeros([7, 7]), zeros([2, 2]))


def test_parameters_are_openpcdets():
    head = head_of(settings(SHARED_CONV_NUM_FILTER=12))
    shapes = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    assert shapes["shared_conv.0.weight"] == (12, 16, 3, 3)
    assert shapes["shared_conv.1.running_mean"] == (12,)
    assert shapes["rpn_heads.0.conv_cls.weight"] == (4 * 2, 12, 1, 1)
    assert shapes["rpn_heads.1.conv_cls.weight"] == (2 * 1, 12, 1, 1)
    assert shapes["rpn_heads.0.conv_box.bias"] == (4 * 7,)
    assert shapes["rpn_heads.1.conv_dir_cls.weight"] == (2 * 2, 12, 1, 1)
    assert head.state_dict()["rpn_heads.0.head_label_indices"].tolist() == [1, 2]
    assert head.state_dict()["rpn_heads.1.head_label_indices"].tolist() == [3]
    assert not [name for name in shapes if not name.startswith(("shared_conv.", "rpn_heads."))]


def test_branches_of_separate_boxes_have_their_names():
    head = head_of(settings(SEPARATE_REG_CONFIG=SEPARATE_REG))
    shapes = {name: tuple(value.shape) for name, value in head.rpn_heads[0].named_parameters()}
    assert shapes["conv_box.conv_reg.0.weight"] == (6, 16, 3, 3)
    assert shapes["conv_box.conv_reg.3.weight"] == (4 * 2, 6, 3, 3)
    assert shapes["conv_box.conv_size.3.bias"] == (4 * 3,)
    assert shapes["conv_cls.3.weight"] == (4 * 2, 6, 3, 3)
    assert shapes["conv_dir_cls.weight"] == (4 * 2, 16, 1, 1)
    assert next(iter(shapes)).startswith("conv_box.")


@pytest.mark.parametrize("separate", [True, False])
def test_predictions_are_those_of_the_convolutions_by_kind_row_column(separate):
    head = head_of(settings(SEPARATE_MULTIHEAD=separate))
    x = features()
    preds = head(x)
    assert [p.shape[-1] for p in preds.cls_preds] == ([2, 1] if separate else [3, 3])
    for one, logits, codes in zip(head.rpn_heads, preds.cls_preds, preds.box_preds, strict=True):
        for layer, found in ((one.conv_cls, logits), (one.conv_box, codes)):
            wanted = layer(x).view(2, one.num_kinds, -1, 4, 4)  # scene, kind, number, y, x
            torch.testing.assert_close(found.view(2, one.num_kinds, 4, 4, -1), wanted.permute(0, 1, 3, 4, 2))


def test_channels_of_separate_branches_count_as_one_maps():
    """As in OpenPCDet: with 4 kinds the codes of the first are 7 of the 8 channels of the first branch."""
    head = head_of(settings(SEPARATE_REG_CONFIG=SEPARATE_REG))
    x = features()
    codes = head(x).box_preds[0].view(2, 4, 4, 4, 7)
    first = head.rpn_heads[0].eval().conv_box["conv_reg"]
    head.eval()
    torch.testing.assert_close(head(x).box_preds[0].view(2, 4, 4, 4, 7)[:, 0].permute(0, 3, 1, 2), first(x)[:, :7])
    assert codes.shape == (2, 4, 4, 4, 7)


def test_the_loss_by_hand():
    """A car on an anchor of the first head, all predictions zero: class probability 1/2, box right, direction open."""
    head = head_of(settings())
    targets = head.assign(torch.tensor([[CAR]]))
    assert targets.positives.tolist() == [0 * 16 + 2 * 4 + 1]  # kind, row, column
    assert torch.equal(targets.codes, torch.zeros(1, 7))
    losses = head.loss(zero_preds(head), targets)
    # 64 anchors of 2 classes and 32 of 1; one positive (alpha 1/4), 159 negatives (3/4), each times 1/4 log 2.
    assert (targets.labels < 0).sum() == 0
    assert losses["rpn_loss_cls"].item() == pytest.approx((0.25 + 159 * 0.75) * 0.25 * math.log(2), rel=1e-5)
    assert losses["rpn_loss_loc"].item() == 0
    assert losses["rpn_loss_dir"].item() == pytest.approx(0.2 * math.log(2), rel=1e-5)


def test_weights_of_positives_and_negatives():
    """Positive anchors count 3 fold in both of their classes, negative ones 2 fold."""
    head = head_of(settings(weights={"pos_cls_weight": 3.0, "neg_cls_weight": 2.0}))
    loss = head.loss(zero_preds(head), head.assign(torch.tensor([[CAR]])))["rpn_loss_cls"]
    wanted = (3 * (0.25 + 0.75) + 2 * 158 * 0.75) * 0.25 * math.log(2)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)


def test_a_head_that_knows_one_class_of_several():
    """The second head's only column is class 3: predicting it costs nothing, in any other column there is none."""
    head = head_of(settings())
    targets = head.assign(torch.tensor([[CYCLIST]]))
    [place] = targets.positives.tolist()
    assert place == 4 * 16 + 0 * 16 + 2  # behind the 4 kinds of the first head
    preds = zero_preds(head)
    for logits in preds.cls_preds:
        logits.data -= 20
    preds.cls_preds[1].data[0, place - 64, 0] = 20
    assert head.loss(preds, targets)["rpn_loss_cls"].item() < 1e-6


@pytest.mark.parametrize("separate", [True, False])
def test_one_head_for_all_equals_anchor_head_single(separate):
    """The same layers, the other order of the anchors: equal losses, and the same candidates."""
    options = settings(RPN_HEAD_CFGS=[{"HEAD_CLS_NAME": list(CLASSES)}], SEPARATE_MULTIHEAD=separate)
    multi = head_of(options)
    for key in ("RPN_HEAD_CFGS", "USE_MULTIHEAD", "SEPARATE_MULTIHEAD"):
        del options[key]
    single = construct(AnchorHeadSingle, options, info_of(), {"spatial_features_2d": 16})
    single.load_state_dict({k: v for k, v in multi.rpn_heads[0].state_dict().items() if k != "head_label_indices"})
    boxes = torch.tensor([[CAR, CYCLIST], [[4.2, 4.1, -1.0, 4.4, 2.1, 1.6, 0.3, 2.0], [0.0] * 8]])
    x = features()
    wanted, found = single.loss(single(x), single.assign(boxes)), multi.loss(multi(x), multi.assign(boxes))
    assert wanted.keys() == found.keys()
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key])
    for a, b in zip(multi.decode(multi(x)), single.decode(single(x)), strict=True):
        by_cell = [field.view(6, 16, -1).transpose(0, 1).reshape(96, -1) for field in (a.boxes, a.logits)]
        torch.testing.assert_close(by_cell[0], b.boxes)
        torch.testing.assert_close(by_cell[1], b.logits)


def test_classes_of_other_heads_are_minus_infinity():
    head = head_of(settings())
    preds = head(features())
    for i, scene in enumerate(head.decode(preds)):
        assert scene.boxes.shape == (96, 7)
        assert torch.equal(scene.logits[:64, :2], preds.cls_preds[0][i])
        assert torch.equal(scene.logits[64:, 2:], preds.cls_preds[1][i])
        assert (scene.logits[:64, 2] == -torch.inf).all()
        assert (scene.logits[64:, :2] == -torch.inf).all()
    together = head_of(settings(SEPARATE_MULTIHEAD=False))
    assert all(scene.logits.isfinite().all() for scene in together.decode(together(features())))


def test_the_order_of_the_heads_may_differ_from_that_of_the_classes():
    heads = [{"HEAD_CLS_NAME": ["Cyclist"]}, {"HEAD_CLS_NAME": ["Van", "Car"]}]
    head = head_of(settings(RPN_HEAD_CFGS=heads))
    targets = head.assign(torch.tensor([[CAR]]))
    [place] = targets.positives.tolist()
    assert place == 4 * 16 + 2 * 4 + 1  # behind the kinds of Cyclist and of Van
    preds = head(features(1))
    for logits in preds.cls_preds:
        logits.data.fill_(-20)
    preds.cls_preds[1].data[0, place - 32, 1] = 20
    assert head.loss(preds, targets)["rpn_loss_cls"].item() < 1e-6
    [scene] = head.decode(preds)
    assert scene.logits[place].tolist() == [20, -20, -torch.inf]
    assert scene.logits[0].tolist() == [-torch.inf, -torch.inf, -20]


@pytest.mark.parametrize("heading", [-3.1, -0.2, 0.8, 2.9])
def test_decoding_undoes_assigning(heading):
    head = head_of(settings())
    boxes = torch.tensor([[CAR, CYCLIST]])
    boxes[..., 6] = heading
    targets = head.assign(boxes)
    assert len(targets.positives) >= 2
    preds = zero_preds(head)
    codes = torch.zeros(96, 7)
    codes[targets.positives] = targets.codes
    offset = (heading - 0.78539) % (2 * math.pi)
    for part, directions, found in zip(codes.split([64, 32]), preds.dir_cls_preds, preds.box_preds, strict=True):
        found.data[0] = part
        directions.data[..., int(offset // math.pi)] = 1
    decoded = head.decode(preds)[0].boxes[targets.positives]
    torch.testing.assert_close(decoded[:, :6], targets.boxes[:, :6], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded[:, 6].sin(), targets.boxes[:, 6].sin(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded[:, 6].cos(), targets.boxes[:, 6].cos(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize(
    "changes",
    [{}, {"SEPARATE_MULTIHEAD": False}, {"SEPARATE_REG_CONFIG": SEPARATE_REG, "SHARED_CONV_NUM_FILTER": 8}],
)
def test_every_parameter_is_in_the_graph_with_and_without_boxes(rows, changes):
    head = head_of(settings(**changes)).train()
    boxes = torch.tensor([[CAR, CYCLIST], [CYCLIST, [0.0] * 8]])[:, :rows]
    losses = head.loss(head(features()), head.assign(boxes))
    assert set(losses) == {"rpn_loss_cls", "rpn_loss_loc", "rpn_loss_dir"}
    if rows == 0:
        assert losses["rpn_loss_loc"].item() == losses["rpn_loss_dir"].item() == 0
    sum(losses.values()).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_no_direction_layers_without_their_option():
    head = head_of(settings(USE_DIRECTION_CLASSIFIER=False, SEPARATE_REG_CONFIG=SEPARATE_REG))
    preds = head(features())
    assert preds.dir_cls_preds is None
    assert head.loss(preds, head.assign(torch.tensor([[CAR], [CAR]]))).keys() == {"rpn_loss_cls", "rpn_loss_loc"}
    assert [len(scene.boxes) for scene in head.decode(preds)] == [96, 96]


def test_class_agnostic_heads_know_one_class():
    head = head_of(settings(CLASS_AGNOSTIC=True))
    preds = head(features(1))
    assert [p.shape[-1] for p in preds.cls_preds] == [1, 1]
    targets = head.assign(torch.tensor([[CYCLIST]]))
    for logits in preds.cls_preds:
        logits.data.fill_(-20)
    preds.cls_preds[1].data.view(-1)[targets.positives - 64] = 20
    assert head.loss(preds, targets)["rpn_loss_cls"].item() < 1e-6


def test_adaptive_targets_may_give_a_head_boxes_of_other_classes():
    """ATSS matches every set with all boxes: a car is a negative for the layer that knows cyclists only."""
    head = head_of(settings(assigner={"NAME": "ATSS", "TOPK": 9}))
    targets = head.assign(torch.tensor([[CAR]]))
    assert (targets.positives >= 64).any()
    losses = head.loss(head(features(1)), targets)
    assert all(term.isfinite() for term in losses.values())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"RPN_HEAD_CFGS": [{"HEAD_CLS_NAME": ["Car", "Cyclist"]}]}, "must name every class once"),
        ({"RPN_HEAD_CFGS": [{"HEAD_CLS_NAME": [*CLASSES, "Car"]}]}, "must name every class once"),
        ({"ANCHOR_GENERATOR_CONFIG": BLOCKS[:2]}, r"AnchorHeadMulti: .* no block for \['Cyclist'\]"),
        ({"ANCHOR_GENERATOR_CONFIG": [*BLOCKS, block("Bus", [1.0, 1.0, 1.0])]}, "'Bus' is not in CLASS_NAMES"),
        ({"USE_MULTIHEAD": False}, "USE_MULTIHEAD must be true"),
        ({"SEPARATE_REG_CONFIG": SEPARATE_REG | {"REG_LIST": ["reg:2"]}}, "2 codes in all, the box coder 7"),
        ({"TARGET_ASSIGNER_CONFIG": {"NAME": "ATSS"}}, "TOPK of at least 1"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        head_of(settings(**changes))
