"""Runs a model as a recorded run was made, and keeps what its slots returned on the way."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pcdet.models import draws
from pcdet.models.candidates import Candidates, Proposals
from pcdet.models.dense_heads.center_head import LEAST_PROBABILITY
from pcdet.structures.batch import Batch


@dataclass
class Captured:
    """One run of a model."""

    output: Any  # what the model returned
    slots: dict[str, dict[str, Any]]  # by slot: the fields of what it returned, and of its targets
    proposals: Proposals | None  # of the first stage, before the recorded ones took their place
    fed: Proposals | None  # the recorded ones
    results: dict[str, Any]  # by slot: what it returned


def run(model: nn.Module, batch: Batch, arrays: Mapping[str, Any], mode: str) -> Captured:
    """Run on a batch with a second stage that is fed the recorded proposals."""
    captured = Captured(None, {}, None, None, {})

    def keep(name: str):
        def hook(module: nn.Module, inputs: tuple, output: Any) -> None:
            captured.slots[name], captured.results[name] = output._asdict(), output

        return hook

    def feed(module: nn.Module, inputs: tuple, output: Proposals) -> Proposals:
        captured.proposals, captured.fed = output, _recorded(arrays, mode, output)
        return captured.fed

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_children()]
    if model.two_stage:
        hooks.append(model.roi_head.proposal_layer.register_forward_hook(feed))
        assign = model.roi_head.assign
        targets = {}

        def keep_targets(*args: Any) -> Any:
            targets["made"] = assign(*args)
            return targets["made"]

        model.roi_head.assign = keep_targets
    with _no_chance(model):
        captured.output = model(batch)
    for hook in hooks:
        hook.remove()
    if model.two_stage:
        del model.roi_head.assign
        if mode == "train":
            captured.slots["roi_head"] |= targets["made"]._asdict()
        else:
            captured.slots["roi_head"] |= captured.fed._asdict()
    if mode == "train" and "point_head" in captured.slots:
        captured.slots["point_head"] |= _point_targets(model, captured, batch)
    return captured


def _recorded(arrays: Mapping[str, Any], mode: str, mine: Proposals) -> Proposals:
    """In training, copies of the labelled boxes had been put in the place of the first proposals."""
    names = {"eval": ("eval.roi_head", "eval.roi_head"), "train": ("train.injected", "train.proposal")}[mode]
    if mode == "eval" and "eval.roi_head.rois" not in arrays:
        names = ("eval.dense_head", "eval.dense_head")
    stored = (arrays[f"{names[0]}.rois"], arrays[f"{names[1]}.roi_scores"], arrays[f"{names[0]}.roi_labels"])
    return Proposals(*(torch.from_numpy(a).to(own.dtype) for a, own in zip(stored, mine, strict=True)))


@contextmanager
def _no_chance(model: nn.Module) -> Iterator[None]:
    """Draws that follow the index, and no dropout, as in the recorded runs."""
    drawn = draws.permutation, draws.integers, draws.uniform
    dropped = {module: module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    draws.permutation = lambda n, generator, device: torch.arange(n, device=device)
    draws.integers = lambda high, size, generator, device: torch.arange(size, device=device) % high
    draws.uniform = lambda size, generator, device: (torch.arange(size, device=device) + 0.5) / size
    for module in dropped:
        module.p = 0.0
    yield
    draws.permutation, draws.integers, draws.uniform = drawn
    for module, p in dropped.items():
        module.p = p


def _point_targets(model: nn.Module, captured: Captured, batch: Batch) -> dict[str, Any]:
    """The point head's targets under their recorded names, as tables of all points."""
    coords = _points_of(captured)
    targets = model.point_head.assign(coords, batch["gt_boxes"])

    def table(rows: Tensor | None) -> Tensor | None:
        if rows is None:
            return None
        return rows.new_zeros(len(coords), rows.shape[1]).index_copy(0, targets.positives, rows)

    return {
        "point_cls_labels": targets.labels,
        "point_part_labels": table(targets.parts),
        "point_box_labels": table(targets.codes),
    }


def _points_of(captured: Captured) -> Tensor:
    return captured.slots.get("pfe", captured.slots["backbone_3d"])["point_coords"]


def point_predictions(model: nn.Module, captured: Captured) -> dict[str, Any]:
    """Decoded boxes and logits of points that are a first stage, under their recorded names."""
    coords, preds = _points_of(captured), captured.results["point_head"]
    scenes = model.point_head.decode(preds, coords, len(captured.fed.rois))
    return {
        "batch_box_preds": torch.cat([scene.boxes for scene in scenes]),
        "batch_cls_preds": torch.cat([scene.logits for scene in scenes]),
    }


def dense_predictions(model: nn.Module, captured: Captured) -> dict[str, Any]:
    """Decoded boxes and logits of anchors under their recorded names; nothing for a head that suppresses itself."""
    preds = captured.results["dense_head"]
    scenes = model.dense_head.decode(preds)
    if not isinstance(scenes[0], Candidates):
        return {}
    logits = torch.stack([scene.logits for scene in scenes])  # (B, A, K)
    known = logits[0].isfinite()  # (A, K)
    boxes = torch.stack([scene.boxes for scene in scenes])
    return {"batch_box_preds": boxes, "batch_cls_preds": logits if known.all() else _by_head(logits, known)}


def _by_head(logits: Tensor, known: Tensor) -> list[Tensor]:
    """Logits of heads that predict some classes each."""
    patterns = torch.unique_consecutive(known, dim=0)
    return [logits[:, (known == pattern).all(dim=1)][:, :, pattern] for pattern in patterns]


def second_stage_predictions(model: nn.Module, captured: Captured) -> dict[str, Tensor]:
    """Refined boxes and their logits under their recorded names, with the rows that only pad."""
    preds, rois = captured.results["roi_head"], captured.fed.rois
    scenes, rows = rois.shape[:2]
    boxes = rois
    if hasattr(preds, "rcnn_reg"):
        boxes = model.roi_head._boxes(preds.rcnn_reg, rois.reshape(-1, 7)).view(scenes, rows, 7)
    return {"batch_cls_preds": preds[0].view(scenes, rows, -1), "batch_box_preds": boxes}


def dense_targets(model: nn.Module, captured: Captured, batch: Batch) -> dict[str, Any]:
    """The dense head's targets as full tables, as they were recorded.

    A head of peaks was recorded after its loss, which turns the logits of the heatmaps into probabilities.
    """
    targets = model.dense_head.assign(batch["gt_boxes"])
    if not hasattr(targets, "codes"):
        maps = captured.slots["dense_head"]["pred_dicts"]
        least = LEAST_PROBABILITY
        heats = [m | {"hm": m["hm"].sigmoid().clamp(least, 1 - least)} for m in maps]
        return {"target_dicts": targets._asdict() | {"heatmap_masks": []}, "pred_dicts": heats}
    table = torch.zeros(targets.labels.numel(), targets.codes.shape[1])
    table[targets.positives] = targets.codes
    return {
        "box_cls_labels": targets.labels,
        "box_reg_targets": table.view(*targets.labels.shape, -1),
        "reg_weights": (targets.labels > 0).float(),
    }
