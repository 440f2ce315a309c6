"""Runs a model on the frames of a recorded run and compares everything that was recorded."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fill_weights import fill_weights
from inputs import info_of, load_batch
from recorded import SECOND_STAGE, STRICT, Row, Tolerance, compare_number, compare_tensor, match_detections
from stages import Captured, dense_predictions, dense_targets, point_predictions, run, second_stage_predictions
from torch import nn

from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.build import build_model
from pcdet.structures.batch import Batch
from pcdet.structures.detections import Detections

MEDIAN_GRADIENT_TOLERANCE = 5e-3
LOST = 0.03  # share of the recorded detections that need not be found
SAME_SCORE = 1e-6
# What OpenPCDet writes into its batch beside the slots' tensors: how its post-processing is to read them, the labels as
# CenterHead overwrites them, and what has rows of its own below: proposals and detections.
BESIDE = {
    "dense_head": {"multihead_label_mapping", "gt_boxes", "final_box_dicts", "rois", "roi_scores", "roi_labels"},
    "roi_head": set(),
    "point_head": {"batch_index"},
}
FLAGS = {"cls_preds_normalized", "has_class_labels"}


def compare_run(record_path: Path, kitti: Path, config: Mapping[str, Any]) -> Iterator[Row]:
    """One row for every recorded input, weight list, slot, loss, gradient group and list of detections.

    A second stage is fed the recorded proposals, so that a tie in the first one does not cascade.
    """
    record = json.loads(record_path.read_text())
    arrays = np.load(record_path.with_suffix(".npz"))
    info = info_of(config)
    sizes = record["input"].get("image_shape", {}).get("values")
    sizes = np.reshape(sizes, (-1, 2)).astype(int).tolist() if sizes else None
    batch = load_batch(kitti / "training", record["frames"], config, info, sizes)
    model = build_model(config["MODEL"], info)
    fill_weights(model)
    yield from _compare_input(batch, record["input"])
    yield _compare_weights(model, record["weights"])
    yield from _compare_evaluation(model, batch, record, arrays)
    fill_weights(model)
    yield from _compare_training(model, batch, record, arrays)


def _compare_input(batch: Batch, record: Mapping[str, Any]) -> Iterator[Row]:
    for key in ("points", "voxels", "voxel_coords", "voxel_num_points", "gt_boxes"):
        if key in record and key in batch:
            yield compare_tensor(f"input {key}", batch[key], record[key], Tolerance(rtol=1e-5, atol=1e-5, total=1e-6))


def _compare_weights(model: nn.Module, record: Mapping[str, Any]) -> Row:
    mine = {name: [list(value.shape), value.double().abs().sum().item()] for name, value in model.state_dict().items()}
    missing, extra = sorted(record.keys() - mine.keys()), sorted(mine.keys() - record.keys())
    if missing or extra:
        return Row("weights", float("inf"), f"missing {missing}, not recorded {extra}")
    shapes = [name for name, (shape, _) in record.items() if mine[name][0] != shape]
    if shapes:
        return Row("weights", float("inf"), f"other shapes: {shapes}")
    worst = max(abs(mine[name][1] - total) / max(total, 1e-6) for name, (_, total) in record.items())
    return Row("weights", worst / 1e-6, f"{len(mine)} entries")


def _compare_evaluation(model: nn.Module, batch: Batch, record: Mapping[str, Any], arrays) -> Iterator[Row]:
    model.eval()
    with torch.no_grad():
        captured = run(model, batch, arrays, "eval")
        _add_first_predictions(model, captured)
        if "roi_head" in captured.slots:
            captured.slots["roi_head"] |= second_stage_predictions(model, captured)
    yield from _compare_proposals("eval", captured, arrays)
    yield from _compare_slots("eval", captured, record["eval"]["slots"])
    for i, scene in enumerate(captured.output):
        wanted = tuple(arrays[f"eval.pred{i}.pred_{key}"] for key in ("boxes", "scores", "labels"))
        yield _compare_detections(f"eval detections {i}", scene, wanted, model.two_stage)


def _add_first_predictions(model: nn.Module, captured: Captured) -> None:
    if "dense_head" in captured.slots:
        captured.slots["dense_head"] |= dense_predictions(model, captured)
    elif model.first == "point_head":
        captured.slots["point_head"] |= point_predictions(model, captured)


def _compare_detections(what: str, scene: Detections, wanted: tuple, two_stage: bool) -> Row:
    """Proposals without points have equal scores, and the order of those is nobody's: they are left out."""
    found = tuple(np.asarray(part) for part in (scene.boxes, scene.scores, scene.labels))
    if two_stage:
        found, wanted = _distinct(found), _distinct(wanted)
    share = match_detections(found, wanted, tolerance=0.1 if two_stage else 2e-3)
    return Row(what, (1 - share) / LOST, f"{share:.4f} of {len(wanted[0])}, found {len(found[0])}")


def _distinct(found: tuple) -> tuple:
    """Detections whose score no other one has, up to rounding."""
    order = np.argsort(found[1])
    near = np.diff(np.asarray(found[1], dtype=np.float64)[order]) < SAME_SCORE
    keep = np.ones(len(order), dtype=bool)
    keep[order[1:][near]] = keep[order[:-1][near]] = False
    return tuple(part[keep] for part in found)


def _compare_proposals(mode: str, captured: Captured, arrays) -> Iterator[Row]:
    """What the first stage proposed, before the recorded proposals took its place."""
    if captured.proposals is None:
        return
    source = _recorded_proposals(mode, arrays)
    for i, mine in enumerate(zip(*captured.proposals, strict=True)):
        wanted = tuple(arrays[f"{source}.{key}"][i] for key in ("rois", "roi_scores", "roi_labels"))
        real = [np.asarray(part[0])[:, 3:6].any(axis=1) for part in (mine, wanted)]
        mine, wanted = (
            tuple(np.asarray(p)[keep] for p in part) for part, keep in zip((mine, wanted), real, strict=True)
        )
        share = match_detections(mine, wanted, tolerance=2e-2)
        yield Row(f"{mode} proposals {i}", (1 - share) / LOST, f"{share:.4f} of {len(wanted[0])}, found {len(mine[0])}")


def _recorded_proposals(mode: str, arrays) -> str:
    if mode == "train":
        return "train.proposal"
    return "eval.roi_head" if "eval.roi_head.rois" in arrays else "eval.dense_head"


def _compare_training(model: nn.Module, batch: Batch, record: Mapping[str, Any], arrays) -> Iterator[Row]:
    model.train()
    captured = run(model, batch, arrays, "train")
    if model.two_stage:
        with torch.no_grad():
            _add_first_predictions(model, captured)
    if "dense_head" in captured.slots:
        captured.slots["dense_head"] |= dense_targets(model, captured, batch)
    yield from _compare_proposals("train", captured, arrays)
    yield from _compare_slots("train", captured, record["train"]["slots"])
    output = captured.output
    total = sum(output.losses.values())
    yield compare_number("train loss", total.item(), record["train"]["loss"], rtol=1e-3)
    for name, wanted in record["train"]["tb_dict"].items():
        if name in output.metrics:
            yield compare_number(f"train {name}", output.metrics[name].item(), wanted, rtol=1e-3)
        else:
            yield Row(f"train {name}", float("inf"), f"recorded {wanted:.6g}, but the model has no such loss")
    total.backward()
    yield from _compare_gradients(model, record["train"]["grad_norm"])
    state = model.state_dict()
    after = record["train"]["bn_after_norm"]
    worst = max(after, key=lambda name: abs(state[name].norm().item() - after[name]) / max(after[name], 1e-6))
    yield compare_number(f"train {worst}", state[worst].norm().item(), after[worst], rtol=1e-3)


def _compare_slots(mode: str, captured: Captured, record: Mapping[str, Any]) -> Iterator[Row]:
    for slot, recorded in record.items():
        tolerance = SECOND_STAGE if slot == "roi_head" else STRICT
        # The head's own table comes last: in training ``roi_scores`` are first all proposals', then the sampled ones'.
        for key, wanted in {**recorded["tensors"], **recorded.get("forward_ret_dict", {})}.items():
            if key in FLAGS or key in BESIDE.get(slot, ()):
                continue
            what, mine = f"{mode} {slot}.{key}", captured.slots.get(slot, {})
            if key in mine:
                yield from _compare_value(what, mine[key], wanted, tolerance)
            elif wanted is not None:
                yield Row(what, 0.0, "is recorded, but the model returns nothing of this name", compared=False)


def _compare_value(what: str, value: Any, wanted: Any, tolerance: Tolerance) -> Iterator[Row]:
    if isinstance(value, SparseConvTensor):
        order = np.lexsort(value.indices.numpy().T[::-1])
        yield compare_tensor(f"{what}.indices", value.indices.numpy()[order], wanted["indices"], tolerance)
        yield compare_tensor(f"{what}.features", value.features.detach().numpy()[order], wanted["features"], tolerance)
    elif isinstance(value, list | tuple) and _is_tensor(wanted):  # heads that predict all classes were recorded as one
        yield from _compare_value(what, torch.cat(list(value), dim=1), wanted, tolerance)
    elif isinstance(value, list | tuple | Mapping):
        parts = wanted if isinstance(wanted, Mapping) else dict(enumerate(wanted))
        mine = value if isinstance(value, Mapping) else dict(enumerate(value))
        for key in parts:
            if key in mine:
                yield from _compare_value(f"{what}.{key}", mine[key], parts[key], tolerance)
            else:
                yield Row(f"{what}.{key}", float("inf"), f"is recorded, the model has only {sorted(mine)}")
    elif isinstance(value, torch.Tensor) and _is_tensor(wanted):
        yield compare_tensor(what, value.detach().numpy(), wanted, tolerance)
    else:
        yield Row(what, 0.0 if value == wanted else float("inf"), f"{value}, recorded {wanted}")


def _is_tensor(wanted: Any) -> bool:
    return isinstance(wanted, Mapping) and "shape" in wanted


def _compare_gradients(model: nn.Module, record: Mapping[str, float]) -> Iterator[Row]:
    """The worst parameter of each slot, and the median of all.

    A norm after a layer takes away its bias, whose gradient is then rounding: it is measured by that of the weight.
    """
    mine = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
    if mine.keys() != record.keys():
        yield Row("gradients", float("inf"), f"other parameters: {sorted(mine.keys() ^ record.keys())}")
        return
    errors = {}
    for name, wanted in record.items():
        least = 1e-5 * record.get(name.removesuffix("bias") + "weight", 0.0)
        errors[name] = abs(mine[name] - wanted) / max(abs(wanted), least, 1e-9)
    for slot in sorted({name.partition(".")[0] for name in errors}):
        worst = max((name for name in errors if name.startswith(slot + ".")), key=errors.get)
        tolerance = SECOND_STAGE if slot == "roi_head" else STRICT
        yield Row(f"gradients {slot}", errors[worst] / tolerance.gradient, f"worst {worst} {errors[worst]:.2g}")
    median = float(np.median(list(errors.values())))
    yield Row("gradients median", median / MEDIAN_GRADIENT_TOLERANCE, f"{median:.2g}")
