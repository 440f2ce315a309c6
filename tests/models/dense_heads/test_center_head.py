import copy
import json

import numpy as np
import pytest
import torch
import yaml

from pcdet.models.assigners.heatmap import MapGrid
from pcdet.models.dense_heads.center_head import CenterHead, CenterPreds
from pcdet.models.dense_heads.centers import best_peaks, boxes_at
from pcdet.models.registry import DENSE_HEADS
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import construct

INFO = DatasetInfo(
    ("Car", "Pedestrian", "Cyclist"), ("x", "y", "z", "i"), (0, -6.4, -3, 12.8, 6.4, 1), (0.1, 0.1, 4.0), (128, 128, 1)
)
CHANNELS = {"spatial_features_2d": 6}
BOX = {"center": 2, "center_z": 1, "dim": 3, "rot": 2}
NMS = {"NMS_TYPE": "nms_gpu", "NMS_THRESH": 0.5, "NMS_PRE_MAXSIZE": 100, "NMS_POST_MAXSIZE": 50}


def options(groups=(("Car", "Pedestrian", "Cyclist"),), extra=(), nms=NMS, **changes):
    """Options of a small head; ``extra`` are branches beside those of a box."""
    branches = BOX | {name: {"vel": 2, "iou": 1}[name] for name in extra}
    order = [name for name in branches if name != "iou"]
    return {
        "class_names_each_head": [list(group) for group in groups],
        "shared_conv_channel": 8,
        "num_hm_conv": 2,
        "separate_head_cfg": {
            "HEAD_ORDER": order,
            "HEAD_DICT": {name: {"out_channels": width, "num_conv": 2} for name, width in branches.items()},
        },
        "target_assigner_config": {
            "FEATURE_MAP_STRIDE": 8,
            "NUM_MAX_OBJS": 6,
            "GAUSSIAN_OVERLAP": 0.1,
            "MIN_RADIUS": 2,
        },
        "loss_config": {
            "LOSS_WEIGHTS": {
                "cls_weight": 1.0,
                "loc_weight": 2.0,
                "code_weights": [1.0] * sum(branches[name] for name in order),
            }
        },
        "post_processing": {
            "SCORE_THRESH": 0.1,
            "POST_CENTER_LIMIT_RANGE": [-1, -7, -3, 14, 7, 3],
            "MAX_OBJ_PER_SAMPLE": 20,
            "NMS_CONFIG": dict(nms),
        },
    } | changes


def head(*args, **changes) -> CenterHead:
    torch.manual_seed(0)
    return CenterHead(INFO, CHANNELS, **options(*args, **changes))


def features(scenes=2):
    return torch.randn(scenes, 6, 16, 16, generator=torch.Generator().manual_seed(1))


def labels(*scenes, velocity=False):
    """Scenes of (x, y, label)."""
    table = torch.zeros(len(scenes), max(map(len, scenes), default=0), 10 if velocity else 8)
    for row, scene in zip(table, scenes, strict=True):
        for box, (x, y, label) in zip(row, scene, strict=False):
            box[:7] = torch.tensor([x, y, -1.0, 3.9, 1.6, 1.5, 0.4])
            box[-1] = label
    return table


def perfect(model, targets) -> CenterPreds:
    """Maps that say exactly what the targets want."""
    maps = []
    for heat, codes, cells, mask in zip(*targets[:4], strict=True):
        scene, slot = mask.nonzero(as_tuple=True)
        table = torch.zeros(len(heat), codes.shape[2], heat.shape[2] * heat.shape[3])
        table[scene, :, cells[scene, slot]] = codes[scene, slot]
        table = table.view(len(heat), -1, *heat.shape[2:])
        parts = table.split([2, 1, 3, 2] + [2] * ("vel" in model.head_order), dim=1)
        hm = torch.where(heat == 1, 4.0, -12.0)
        maps.append(dict(zip(model.head_order, parts, strict=True)) | {"hm": hm})
    return CenterPreds(maps)


def test_it_is_registered():
    assert DENSE_HEADS["CenterHead"] is CenterHead


@pytest.mark.parametrize("run", ["centerpoint_kitti.A", "pv_rcnn_plusplus_reproduced_by_community.A"])
def test_names_and_shapes_are_those_recorded(run, shared, root):
    record = json.loads((shared / f"oracles/openpcdet_models/{run}.json").read_text())["weights"]
    block = yaml.safe_load((root / f"cfgs/kitti_models/{run.split('.')[0]}.yaml").read_text())["MODEL"]["DENSE_HEAD"]
    model = construct(CenterHead, block, INFO, {"spatial_features_2d": 512})
    expected = {name: shape for name, (shape, _) in record.items() if name.startswith("dense_head.")}
    state = {f"dense_head.{name}": list(value.shape) for name, value in model.state_dict().items()}
    assert state == expected and list(model.heads_list[0]) == [*BOX, "hm"]


def test_predictions_have_their_shapes_and_a_low_prior():
    model = head((("Car",), ("Pedestrian", "Cyclist")), ("vel", "iou"))
    preds = model(features()).pred_dicts
    assert [maps["hm"].shape[1] for maps in preds] == [1, 2]
    assert {name: maps.shape[1] for name, maps in preds[1].items()} == BOX | {"vel": 2, "iou": 1, "hm": 2}
    assert all(maps.shape[2:] == (16, 16) for maps in preds[0].values())
    assert model.heads_list[0]["hm"][-1].bias.sigmoid().item() == pytest.approx(0.1, abs=1e-3)


def test_norms_and_biases_are_as_asked():
    plain, other = head(), head(use_bias_before_norm=True, bn_eps=1e-3, bn_mom=0.01)
    assert plain.shared_conv[0].bias is None and plain.heads_list[0]["dim"][0][0].bias is None
    assert plain.shared_conv[1].eps == 1e-5 and plain.shared_conv[1].momentum == 0.1
    assert other.shared_conv[0].bias is not None and other.heads_list[0]["dim"][0][0].bias is not None
    assert other.heads_list[0]["hm"][0][1].eps == 1e-3 and other.heads_list[0]["hm"][0][1].momentum == 0.01


def test_every_head_gets_its_own_classes():
    model = head((("Cyclist",), ("Pedestrian", "Car")))
    gt_boxes = labels([(1.0, 0.0, 1), (4.0, 0.0, 3), (9.0, 0.0, 2)], [])
    before = gt_boxes.clone()
    targets = model.assign(gt_boxes)
    assert torch.equal(gt_boxes, before)
    assert [mask.sum(1).tolist() for mask in targets.masks] == [[1, 0], [2, 0]]
    assert (targets.heatmaps[0] == 1).nonzero().tolist() == [[0, 0, 8, 5]]
    assert (targets.heatmaps[1] == 1).nonzero().tolist() == [[0, 0, 8, 11], [0, 1, 8, 1]]


@pytest.mark.parametrize("velocity", [False, True])
def test_decoding_undoes_assigning(velocity):
    model = head((("Car",), ("Pedestrian", "Cyclist")), ("vel",) if velocity else ())
    gt_boxes = labels([(1.0, 0.0, 1), (4.0, 3.0, 3)], [(9.0, -5.0, 2)], velocity=velocity)
    if velocity:
        gt_boxes[..., 7:9] = torch.tensor([3.0, -1.0])
    found = model.decode(perfect(model, model.assign(gt_boxes)))
    assert [scene.labels.tolist() for scene in found] == [[1, 3], [2]]
    torch.testing.assert_close(found[0].boxes, gt_boxes[0, :, :-1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].boxes, gt_boxes[1, :1, :-1], rtol=1e-5, atol=1e-5)
    assert found[0].scores.tolist() == pytest.approx([torch.tensor(4.0).sigmoid().item()] * 2)


def test_perfect_predictions_cost_next_to_nothing():
    model = head(iou_reg_loss=True)
    targets = model.assign(labels([(1.0, 0.0, 1), (4.0, 3.0, 3)], [(9.0, -5.0, 2)]))
    losses = model.loss(perfect(model, targets), targets)
    assert set(losses) == {"hm_loss_head_0", "loc_loss_head_0", "iou_reg_loss_head_0"}
    assert losses["loc_loss_head_0"] == 0
    assert losses["iou_reg_loss_head_0"].item() == pytest.approx(0, abs=1e-5)
    assert losses["hm_loss_head_0"] < 1e-2


def test_box_loss_by_hand():
    """Two objects: one is 0.5 too high, the other's cosine is off by 0.25; code weights 3 and 1, loc_weight 2."""
    block = options()
    block["loss_config"]["LOSS_WEIGHTS"]["code_weights"] = [1, 1, 3, 1, 1, 1, 1, 1]
    model = CenterHead(INFO, CHANNELS, **block)
    targets = model.assign(labels([(1.0, 0.0, 1)], [(9.0, -5.0, 2)]))
    maps = perfect(model, targets).pred_dicts[0]
    maps["center_z"][0] += 0.5
    maps["rot"][1, 0] += 0.25
    loss = model.loss(CenterPreds([maps]), targets)["loc_loss_head_0"]
    assert loss.item() == pytest.approx((0.5 / 2 * 3 + 0.25 / 2) * 2, rel=1e-5)


def test_the_iou_branch_learns_the_overlap_of_its_box():
    model = head(extra=("iou",))
    targets = model.assign(labels([(1.0, 0.0, 1)]))
    maps = perfect(model, targets).pred_dicts[0] | {"iou": torch.zeros(1, 1, 16, 16, requires_grad=True)}
    maps["center_z"] = (maps["center_z"] + 0.75).requires_grad_()  # half of the height: a third of the union
    losses = model.loss(CenterPreds([maps]), targets)
    assert losses["iou_loss_head_0"].item() == pytest.approx(1 - 2 / 3, abs=1e-5)  # 0 instead of 2 * 1/3 - 1
    losses["iou_loss_head_0"].backward()
    assert maps["center_z"].grad is None and maps["iou"].grad.sum() == 1


@pytest.mark.parametrize("scenes", [([(1.0, 0.0, 1), (4.0, 3.0, 3)], []), ([], [])])
def test_every_parameter_gets_a_finite_gradient(scenes):
    model = head((("Car",), ("Pedestrian", "Cyclist")), ("iou",), iou_reg_loss=True)
    losses = model.loss(model(features()), model.assign(labels(*scenes)))
    assert len(losses) == 8
    if not scenes[0]:
        assert all(value == 0 for name, value in losses.items() if not name.startswith("hm"))
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


def test_half_precision_predictions_give_losses_and_boxes_in_full_precision():
    model = head().bfloat16()
    preds = model(features().bfloat16())
    losses = model.loss(preds, model.assign(labels([(1.0, 0.0, 1)], [])))
    assert {value.dtype for value in losses.values()} == {torch.float32}
    assert model.decode(preds)[0].boxes.dtype == torch.float32


def test_peaks_are_the_best_over_all_classes():
    heat = torch.zeros(1, 2, 2, 3)
    heat[0, 0, 1, 2], heat[0, 1, 0, 1], heat[0, 1, 0, 0] = 0.9, 0.8, 0.95
    peaks = best_peaks(heat, 3)
    assert peaks.scores[0].tolist() == pytest.approx([0.95, 0.9, 0.8])
    assert peaks.classes[0].tolist() == [1, 0, 1] and peaks.cells[0].tolist() == [0, 5, 1]
    assert best_peaks(heat, 100).scores.shape == (1, 12)


def test_recorded_peaks_and_boxes(shared):
    record = {name: torch.from_numpy(value) for name, value in np.load(shared / "oracles/ops/centernet.npz").items()}
    maps = {name: record[f"in_{name}"] for name in ("center", "center_z", "dim")}
    maps["dim"] = maps["dim"].log() if (maps["dim"] > 0).all() else maps["dim"]
    maps["rot"] = torch.cat([record["in_rot_cos"], record["in_rot_sin"]], dim=1)
    peaks = best_peaks(record["in_heat"], 50)
    boxes = boxes_at(maps, peaks.cells, MapGrid((24, 28), (0.0, -40.0), (0.05, 0.05), 8))
    low, high = torch.tensor([0.0, -40, -2]), torch.tensor([10.8, 40, 4])
    keep = ((boxes[..., :3] >= low) & (boxes[..., :3] <= high)).all(dim=-1)
    for i in range(2):
        torch.testing.assert_close(boxes[i, keep[i]], record[f"out_decode{i}_pred_boxes"], rtol=1e-5, atol=1e-5)
        assert torch.equal(peaks.scores[i, keep[i]], record[f"out_decode{i}_pred_scores"])
        assert torch.equal(peaks.classes[i, keep[i]], record[f"out_decode{i}_pred_labels"].long())


def decoded(model, objects, **maps):
    """Detections from objects (x, y, label, logit of the score)."""
    targets = model.assign(labels([(x, y, label) for x, y, label, _ in objects]))
    made = perfect(model, targets).pred_dicts[0]
    made["hm"] = torch.full_like(made["hm"], -12.0)
    for i, (_, _, label, logit) in enumerate(objects):
        made["hm"].flatten(2)[0, label - 1, targets.inds[0][0, i]] = logit
    return model.decode(CenterPreds([made | maps]))[0]


PAIR = [(4.4, 0.4, 1, 2.0), (5.0, 0.4, 3, 1.0), (5.0, 1.2, 3, 0.5)]  # the second overlaps the first by more than half


@pytest.mark.parametrize(
    "nms, expected",
    [
        ({"NMS_THRESH": 0.5}, [1, 3]),
        ({"NMS_THRESH": 0.8}, [1, 3, 3]),
        ({"NMS_POST_MAXSIZE": 1}, [1]),
        ({"NMS_TYPE": "class_specific_nms", "NMS_THRESH": [0.5, 0.5, 0.5]}, [1, 3, 3]),
        ({"NMS_TYPE": "multi_class_nms", "NMS_THRESH": [0.5, 0.5, 0.05]}, [1, 3]),
        ({"NMS_TYPE": "class_specific_nms", "SCORE_THRESH": [0.5, 0.5, 0.7]}, [1, 3]),
        ({"NMS_TYPE": "class_specific_nms", "SCORE_THRESH": 0.75}, [1]),
        ({"NMS_TYPE": "circle_nms", "NMS_THRESH": 0.5}, [1, 3]),
        ({"NMS_TYPE": "circle_nms", "NMS_THRESH": 0.3}, [1, 3, 3]),
        ({"NMS_TYPE": "circle_nms", "NMS_THRESH": 2.0}, [1]),
    ],
)
def test_ways_of_suppression(nms, expected):
    assert decoded(head(nms=NMS | nms), PAIR).labels.tolist() == expected


def test_scores_and_centres_beyond_the_limits_are_dropped():
    block = options()
    block["post_processing"] |= {"SCORE_THRESH": 0.5, "POST_CENTER_LIMIT_RANGE": [0, -7, -3, 6, 7, 3]}
    model = CenterHead(INFO, CHANNELS, **block)
    objects = [(1.0, 0.0, 1, 3.0), (9.0, 0.0, 1, 3.0), (4.0, 4.0, 2, 0.0), (4.0, -4.0, 2, 0.1)]
    assert decoded(model, objects).labels.tolist() == [1, 2]  # a score of exactly SCORE_THRESH is too low


def test_scores_are_rectified_by_the_predicted_overlap():
    block = options(extra=("iou",))
    block["post_processing"] |= {"USE_IOU_TO_RECTIFY_SCORE": True, "IOU_RECTIFIER": [0.5, 0.0, 1.0]}
    model = CenterHead(INFO, CHANNELS, **block)
    objects = [(1.0, 0.0, 1, 2.0), (6.0, 0.0, 2, 1.0), (11.0, 0.0, 3, 0.0)]
    found = decoded(model, objects, iou=torch.full((1, 1, 16, 16), -0.5))  # an overlap of 0.25
    scores = dict(zip(found.labels.tolist(), found.scores.tolist(), strict=True))
    first, second = torch.tensor([2.0, 1.0]).sigmoid().tolist()
    assert scores == pytest.approx({1: (first * 0.25) ** 0.5, 2: second, 3: 0.25})


def test_nothing_found_is_a_result():
    model = head(nms=NMS | {"NMS_TYPE": "class_specific_nms"})
    preds = perfect(model, model.assign(labels([], [])))
    found = model.decode(preds)
    assert [len(scene) for scene in found] == [0, 0] and found[0].boxes.shape == (0, 7)
    assert found[0].labels.dtype == torch.int64


def test_a_batch_of_two_equals_two_of_one():
    model = head(nms=NMS | {"NMS_THRESH": 0.1}).eval()
    x = features()
    both, alone = model.decode(model(x)), [model.decode(model(x[i : i + 1]))[0] for i in range(2)]
    for one, other in zip(both, alone, strict=True):
        torch.testing.assert_close(one.boxes, other.boxes, rtol=1e-4, atol=1e-5)
        assert torch.equal(one.labels, other.labels)


def test_a_map_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"\(8, 16\) cells along y and x, the grid \(16, 16\); FEATURE_MAP_STRIDE 8"):
        head()(features()[:, :, :8])


def test_labels_without_the_needed_velocity_are_refused():
    with pytest.raises(ValueError, match="needs labels with 10 numbers, class included, but they have 8"):
        head(extra=("vel",)).assign(labels([(1.0, 0.0, 1)]))


def changed(path, value):
    block = copy.deepcopy(options())
    place = block
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return block


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["class_names_each_head"], [["Car"]], "every class of .* once"),
        (["class_names_each_head"], [["Car", "Pedestrian", "Cyclist"], ["Bus"]], "one of them in every head"),
        (["separate_head_cfg", "HEAD_ORDER"], ["center", "dim", "center_z", "rot"], "HEAD_ORDER is"),
        (["separate_head_cfg", "HEAD_DICT", "depth"], {"out_channels": 1, "num_conv": 2}, "without use .'depth'"),
        (["separate_head_cfg", "HEAD_DICT", "dim"], {"out_channels": 2, "num_conv": 2}, "HEAD_DICT.dim needs .* 3"),
        (["loss_config", "LOSS_WEIGHTS", "code_weights"], [1.0], "code_weights has 1 numbers, HEAD_ORDER makes 8"),
        (["post_processing", "NMS_CONFIG"], {}, "NMS_CONFIG needs NMS_THRESH"),
        (["post_processing", "NMS_CONFIG", "NMS_THRESH"], [0.1, 0.2, 0.3], "it needs one number"),
        (["post_processing", "POST_CENTER_LIMIT_RANGE"], [0, 1], "lowest and of the highest"),
        (["post_processing", "USE_IOU_TO_RECTIFY_SCORE"], True, "needs the branch iou"),
    ],
)
def test_wrong_settings_are_named(path, value, message):
    with pytest.raises(ValueError, match=message):
        CenterHead(INFO, CHANNELS, **changed(path, value))
