"""Recall and precision of detections from a score on: what a user of a detector sees, unlike an average precision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from pcdet.evaluation.classes import NEIGHBOURS, min_overlaps_of
from pcdet.ops.iou3d import boxes_iou3d

RECALL_THRESHOLDS = (0.3, 0.5, 0.7)


class ClassCounts(NamedTuple):
    """How the detections of one class met its ground truths."""

    name: str
    iou_threshold: float
    true_positives: int
    false_positives: int
    ground_truths: int  # those with enough points

    @property
    def recall(self) -> float | None:
        """Part of the ground truths that were found; ``None`` if there are none."""
        return self.true_positives / self.ground_truths if self.ground_truths else None

    @property
    def precision(self) -> float | None:
        """Part of the detections that lie on a ground truth; ``None`` if there are none."""
        detections = self.true_positives + self.false_positives
        return self.true_positives / detections if detections else None


@dataclass(frozen=True)
class RecallTable:
    """Counts of every class at one score threshold."""

    classes: tuple[ClassCounts, ...]
    score_threshold: float
    min_points: int

    @property
    def metrics(self) -> dict[str, float]:
        """Shares from 0 to 1 as ``recall_at_score/Car`` and ``precision_at_score/Car``; undefined ones are left out."""
        out = {}
        for kind in ("recall", "precision"):
            values = {f"{kind}_at_score/{c.name}": getattr(c, kind) for c in self.classes}
            out |= {tag: value for tag, value in values.items() if value is not None}
        return out

    @property
    def text(self) -> str:
        """A line a class with the counts behind its numbers."""
        points = f", objects of {self.min_points} points or more" if self.min_points else ""
        lines = [f"Recall and precision at scores from {self.score_threshold:g}{points} (3-D IoU, one detection each):"]
        width = max(len(c.name) for c in self.classes)
        for c in self.classes:
            found = c.true_positives + c.false_positives
            lines.append(
                f"{c.name:<{width}}  IoU > {c.iou_threshold:.2f}  recall {_percent(c.recall)} "
                f"({c.true_positives} of {c.ground_truths})  precision {_percent(c.precision)} "
                f"({c.true_positives} of {found})"
            )
        return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.1%}"


def recall_precision(
    gt_boxes: Sequence[np.ndarray],
    gt_names: Sequence[Sequence[str]],
    num_points_in_gt: Sequence[np.ndarray],
    detections: Sequence[Mapping[str, Any]],
    *,
    class_names: Sequence[str],
    score_threshold: float,
    iou_threshold: float | Mapping[str, float] | None = None,
    min_points: int = 0,
    neutral: Mapping[str, str] = NEIGHBOURS,
) -> RecallTable:
    """Match the detections of each class to its ground truths, one to one, and count.

    Within a frame the best-scored detection chooses first: the unmatched ground truth of its class with the largest
    3-D IoU above the threshold. Ground truths with fewer than ``min_points`` points, and those of a class that is
    ``neutral`` to it (in KITTI Van to Car, Person_sitting to Pedestrian), are neither missed nor, when matched, false
    positives.

    Args:
        gt_boxes: (M, 7) LiDAR boxes of each frame.
        gt_names: (M,) class names of each frame.
        num_points_in_gt: (M,) LiDAR points in each box.
        detections: Each frame's ``boxes_lidar`` (D, 7), ``score`` (D,) and ``name`` (D,).
        class_names: What to count.
        score_threshold: Detections below it are left out.
        iou_threshold: One for all classes, or class -> threshold; by default, and for classes not in the mapping,
            KITTI's (0.7 for cars, 0.5 for others).
        min_points, neutral: See above; names of ``neutral`` are lower case.

    Raises:
        ValueError: The lists differ in length, or the arrays of a frame do.
    """
    frames = list(_frames(gt_boxes, gt_names, num_points_in_gt, detections))
    rows = []
    for name, needed in zip(class_names, _iou_thresholds(class_names, iou_threshold), strict=True):
        counts = [_count(frame, name, needed, score_threshold, min_points, neutral) for frame in frames]
        rows.append(ClassCounts(name, needed, *np.array(counts, dtype=int).reshape(-1, 3).sum(axis=0).tolist()))
    return RecallTable(tuple(rows), score_threshold, min_points)


class _Frame(NamedTuple):
    """One frame with lower-case names; ``overlaps`` is (D, M)."""

    names: np.ndarray  # (M,)
    points: np.ndarray  # (M,)
    found_names: np.ndarray  # (D,)
    scores: np.ndarray  # (D,)
    overlaps: np.ndarray


def _frames(gt_boxes, gt_names, num_points_in_gt, detections):
    lengths = [len(gt_boxes), len(gt_names), len(num_points_in_gt), len(detections)]
    if len(set(lengths)) > 1:
        raise ValueError(f"boxes, names, point counts and detections are of {lengths} frames; they must pair up")
    for f, (boxes, names, points, found) in enumerate(
        zip(gt_boxes, gt_names, num_points_in_gt, detections, strict=True)
    ):
        truth, guess = _boxes(boxes), _boxes(found["boxes_lidar"])
        sizes = [len(truth), len(names), len(points)], [len(guess), len(found["name"]), len(found["score"])]
        if any(len(set(side)) > 1 for side in sizes):
            raise ValueError(f"frame number {f}: boxes, names and point counts, or scores, number {sizes}")
        yield _Frame(
            _lower(names), np.asarray(points), _lower(found["name"]), np.asarray(found["score"]),
            boxes_iou3d(guess, truth).numpy(),
        )  # fmt: skip


def _boxes(boxes: np.ndarray) -> torch.Tensor:
    """(M, 7) double on the CPU; frames without boxes may have any shape."""
    boxes = np.asarray(boxes, dtype=np.float64)
    return torch.from_numpy(boxes[:, :7] if boxes.size else np.zeros((0, 7)))


def _lower(names: Sequence[str]) -> np.ndarray:
    return np.array([str(name).lower() for name in names], dtype=np.str_)


def _iou_thresholds(class_names: Sequence[str], given: float | Mapping[str, float] | None) -> list[float]:
    if isinstance(given, (int, float)):
        return [float(given)] * len(class_names)
    chosen = {name.lower(): value for name, value in (given or {}).items()}
    table = [pair.strict for pair in min_overlaps_of(class_names)]
    return [float(chosen.get(name.lower(), value)) for name, value in zip(class_names, table, strict=True)]


def _count(
    frame: _Frame, name: str, needed: float, lowest: float, min_points: int, neutral: Mapping[str, str]
) -> tuple[int, int, int]:
    """True positives, false positives and ground truths of a class in a frame."""
    name = name.lower()
    same = frame.names == name
    asked = same & (frame.points >= min_points)  # (M,)
    spare = (same | (frame.names == neutral.get(name, ""))) & ~asked
    mine = np.flatnonzero((frame.found_names == name) & (frame.scores >= lowest))
    mine = mine[np.argsort(-frame.scores[mine], kind="stable")]
    free = np.ones(len(frame.names), dtype=bool)
    right = wrong = 0
    for found in mine:
        for kind in (asked, spare):
            reachable = np.where(kind & free & (frame.overlaps[found] > needed), frame.overlaps[found], 0.0)
            if reachable.any():
                free[reachable.argmax()] = False
                right += kind is asked
                break
        else:
            wrong += 1
    return right, wrong, int(asked.sum())


def recall_counters(
    gt_boxes: Sequence[np.ndarray],
    boxes: Sequence[np.ndarray],
    *,
    stage: str = "rcnn",
    thresholds: Sequence[float] = RECALL_THRESHOLDS,
) -> dict[str, float]:
    """OpenPCDet's recall: the part of all ground truths that some box overlaps, ``recall/rcnn_0.3`` and so on.

    Neither class nor score is asked for, and one box may serve several ground truths. ``gt_boxes`` and ``boxes`` are
    (M, 7) and (D, 7) LiDAR boxes of each frame: final ones, or proposals with ``stage="roi"``. Without ground truths
    there is no recall and the dictionary is empty.
    """
    pairs = zip(gt_boxes, boxes, strict=True)
    best = [_best_overlaps(_boxes(truth), _boxes(found)) for truth, found in pairs]
    overlaps = np.concatenate([np.zeros(0), *best])  # (M,) over all frames
    if not len(overlaps):
        return {}
    return {f"recall/{stage}_{t:g}": float((overlaps > t).mean()) for t in thresholds}


def recall_by_stage(
    gt_boxes: Sequence[np.ndarray], results: Sequence[Mapping[str, Any]], thresholds: Sequence[float]
) -> dict[str, float]:
    """:func:`recall_counters` of final boxes, or of proposals and of all refined boxes where results have them."""
    if not all("refined" in result for result in results):
        return recall_counters(gt_boxes, [result["boxes_lidar"] for result in results], thresholds=thresholds)
    stages = {"roi": "proposals", "rcnn": "refined"}
    recalls: dict[str, float] = {}
    for stage, key in stages.items():
        recalls |= recall_counters(gt_boxes, [r[key] for r in results], stage=stage, thresholds=thresholds)
    return recalls


def metric_names(class_names: Sequence[str], thresholds: Sequence[float]) -> set[str]:
    """Every name that :attr:`RecallTable.metrics` and :func:`recall_by_stage` may give."""
    by_class = {f"{kind}_at_score/{name}" for kind in ("recall", "precision") for name in class_names}
    return by_class | {f"recall/{stage}_{t:g}" for stage in ("roi", "rcnn") for t in thresholds}


def _best_overlaps(truth: torch.Tensor, found: torch.Tensor) -> np.ndarray:
    """(M, 7), (D, 7) -> (M,) the largest 3-D IoU of each ground truth with any box."""
    if not len(found):
        return np.zeros(len(truth))
    return boxes_iou3d(truth, found).numpy().max(axis=1)
