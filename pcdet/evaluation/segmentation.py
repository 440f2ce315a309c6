"""Intersection over union of parts and of semantic classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcdet.evaluation.classification import confusion_matrix
from pcdet.evaluation.report import EvalReport


def count_points(results: Sequence[Mapping[str, Any]], num_class: int) -> np.ndarray:
    """(K, K) int64: points of class i (row) that were called j, over results with ``labels`` and ``called`` (N,).

    Points with a label below 0 do not count.
    """
    matrix = np.zeros((num_class, num_class), dtype=np.int64)
    for result in results:
        known = result["labels"] >= 0
        matrix += confusion_matrix(result["labels"][known], result["called"][known], num_class)
    return matrix


def class_ious(matrix: np.ndarray) -> np.ndarray:
    """(K,) right points over points that are or were called so; NaN for a class that is in neither."""
    right = matrix.diagonal()
    union = matrix.sum(axis=0) + matrix.sum(axis=1) - right
    return np.where(union > 0, right / np.maximum(union, 1), np.nan)


def evaluate_semantic(matrix: np.ndarray, class_names: Sequence[str]) -> EvalReport:
    """Overall and mean class accuracy, mean IoU and IoU by class, from the points of all clouds together.

    A class without a true point has no accuracy, one that is in neither truth nor predictions no IoU; neither enters
    the mean. Without any labelled point there are no metrics.
    """
    if not matrix.sum():
        return EvalReport({}, "no labelled point, metrics skipped")
    counts, right, ious = matrix.sum(axis=1), matrix.diagonal(), class_ious(matrix)
    there = counts > 0
    metrics = {
        "accuracy/overall": float(right.sum() / counts.sum()),
        "accuracy/mean_class": float((right[there] / counts[there]).mean()),
        "iou/mean": float(np.nanmean(ious)),
        **{f"iou_of/{name}": float(iou) for name, iou in zip(class_names, ious, strict=True) if not np.isnan(iou)},
    }
    width = max(map(len, class_names))
    lines = [
        f"mean IoU {metrics['iou/mean']:.2%} ({(~np.isnan(ious)).sum()} of {len(ious)} classes)",
        f"overall accuracy of points {metrics['accuracy/overall']:.2%} ({right.sum()} of {counts.sum()})",
        f"mean class accuracy of points {metrics['accuracy/mean_class']:.2%}",
    ]
    for name, iou, count, found in zip(class_names, ious, counts, right, strict=True):
        share = f"accuracy {found / count:8.2%} of {count} points" if count else "no point"
        lines.append(f"{name:<{width}} IoU {'n/a' if np.isnan(iou) else f'{iou:.2%}':>8}  {share}")
    return EvalReport(metrics, "\n".join(lines))


def semantic_names(class_names: Sequence[str]) -> set[str]:
    """Every name that :func:`evaluate_semantic` may give."""
    return {"accuracy/overall", "accuracy/mean_class", "iou/mean", *(f"iou_of/{name}" for name in class_names)}


def cloud_iou(labels: np.ndarray, called: np.ndarray, parts: Sequence[int]) -> float:
    """Mean IoU over the parts of one object's category.

    A part that is neither in the truth nor in the prediction counts 1 (ShapeNetPart's rule). Points with a label below
    0 do not count.
    """
    known = labels >= 0
    labels, called = labels[known], called[known]
    ious = []
    for part in parts:
        is_part, is_called = labels == part, called == part
        union = int((is_part | is_called).sum())
        ious.append(1.0 if union == 0 else float((is_part & is_called).sum() / union))
    return float(np.mean(ious))


def evaluate_parts(
    results: Sequence[Mapping[str, Any]],
    categories: np.ndarray,  # (M,) category of each result
    category_names: Sequence[str],
    parts_of: Sequence[Sequence[int]],  # of each category
    part_names: Sequence[str],
) -> EvalReport:
    """Instance mean IoU (over clouds), class mean IoU (over categories of their clouds' mean), and by category.

    Categories without a cloud do not enter the mean. Besides the accuracy of points, overall and in the mean of parts.
    """
    if not len(results):
        return EvalReport({}, "no labelled cloud, metrics skipped")
    ious = np.array(
        [cloud_iou(r["labels"], r["called"], parts_of[c]) for r, c in zip(results, categories, strict=True)]
    )
    there = np.unique(categories)
    by_category = {category_names[c]: float(ious[categories == c].mean()) for c in there}
    points = evaluate_semantic(count_points(results, len(part_names)), part_names)
    metrics = {
        "iou/instance_mean": float(ious.mean()),
        "iou/class_mean": float(np.mean(list(by_category.values()))),
        **{key: value for key, value in points.metrics.items() if key.startswith("accuracy/")},
        **{f"iou_of/{name}": value for name, value in by_category.items()},
    }
    width = max(map(len, category_names))
    lines = [
        f"instance mean IoU {metrics['iou/instance_mean']:.2%} ({len(ious)} clouds; a part absent in truth and "
        "prediction counts 1)",
        f"class mean IoU {metrics['iou/class_mean']:.2%} ({len(there)} of {len(category_names)} categories)",
        f"overall accuracy of points {metrics['accuracy/overall']:.2%}",
        f"mean accuracy of parts {metrics['accuracy/mean_class']:.2%}",
    ]
    lines += [
        f"{n:<{width}} {v:8.2%}  {(categories == c).sum()} clouds"
        for c, (n, v) in zip(there, by_category.items(), strict=True)
    ]
    return EvalReport(metrics, "\n".join(lines))


def part_names(category_names: Sequence[str]) -> set[str]:
    """Every name that :func:`evaluate_parts` may give."""
    own = {"iou/instance_mean", "iou/class_mean", "accuracy/overall", "accuracy/mean_class"}
    return own | {f"iou_of/{name}" for name in category_names}
