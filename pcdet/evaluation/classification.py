"""Accuracy of classifiers."""

from collections.abc import Sequence

import numpy as np

from pcdet.evaluation.report import EvalReport


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, num_class: int) -> np.ndarray:
    """(K, K) int64: how often class i (row) was called j (column).

    ``labels`` and ``predictions`` are (N,) integers from 0 to K - 1. Raises ``ValueError`` for other values or if
    they are not equally long.
    """
    sides = [np.asarray(side).reshape(-1) for side in (labels, predictions)]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{len(sides[0])} labels but {len(sides[1])} predictions; every label needs one")
    for what, side in zip(("label", "prediction"), sides, strict=True):
        wrong = side[~np.isin(side, np.arange(num_class))]
        if len(wrong):
            raise ValueError(f"{what} {wrong[0]} is none of the classes 0 to {num_class - 1}")
    cells = sides[0].astype(np.int64) * num_class + sides[1].astype(np.int64)
    return np.bincount(cells, minlength=num_class**2).reshape(num_class, num_class)


def evaluate(labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]) -> EvalReport:
    """Overall accuracy, mean class accuracy, accuracy by class, and the confusions that happened most.

    Args:
        labels: (N,) classes from 0.
        predictions: (N,) classes from 0, or (N, K) scores of which the largest counts (the first of equal ones).
        class_names: The K names.

    Returns:
        ``metrics`` as shares from 0 to 1: ``accuracy/overall``, ``accuracy/mean_class`` and ``accuracy_of/<name>``.
        Classes without a sample have no accuracy and do not enter the mean; without any sample there are no metrics.

    Raises:
        ValueError: As in :func:`confusion_matrix`, or the scores have another shape, or one is NaN.
    """
    matrix = confusion_matrix(labels, _called(np.asarray(predictions), len(class_names)), len(class_names))
    if not matrix.sum():
        return EvalReport({}, "no labelled sample, metrics skipped")
    counts, right = matrix.sum(axis=1), matrix.diagonal()
    there = np.flatnonzero(counts)
    by_class = {class_names[i]: float(right[i] / counts[i]) for i in there}
    metrics = {
        "accuracy/overall": float(right.sum() / counts.sum()),
        "accuracy/mean_class": float(np.mean(list(by_class.values()))),
        **{f"accuracy_of/{name}": value for name, value in by_class.items()},
    }
    return EvalReport(metrics, _text(matrix, metrics, class_names))


def metric_names(class_names: Sequence[str]) -> set[str]:
    """Every name that :func:`evaluate` may give."""
    return {"accuracy/overall", "accuracy/mean_class", *(f"accuracy_of/{name}" for name in class_names)}


def _called(predictions: np.ndarray, num_class: int) -> np.ndarray:
    """(N,) classes, whether given as such or as (N, K) scores."""
    if predictions.ndim == 1:
        return predictions
    if predictions.ndim != 2 or predictions.shape[1] != num_class:
        raise ValueError(f"predictions have shape {predictions.shape}, expected (N,) or (N, {num_class})")
    if np.isnan(predictions).any():
        row = int(np.flatnonzero(np.isnan(predictions).any(axis=1))[0])
        raise ValueError(f"the scores of sample {row} hold a NaN, so it has no largest one")
    return predictions.argmax(axis=1)


def _text(matrix: np.ndarray, metrics: dict[str, float], class_names: Sequence[str]) -> str:
    counts, right = matrix.sum(axis=1), matrix.diagonal()
    width = max(map(len, class_names))
    lines = [
        f"overall accuracy {metrics['accuracy/overall']:.2%} ({right.sum()} of {counts.sum()})",
        f"mean class accuracy {metrics['accuracy/mean_class']:.2%} ({(counts > 0).sum()} of {len(counts)} classes)",
    ]
    for name, count, found, row in zip(class_names, counts, right, matrix, strict=True):
        share = f"{found / count:8.2%}" if count else f"{'n/a':>8}"
        lines.append(f"{name:<{width}} {share}  {found:>5} of {count:<5}  {_confused(row, name, class_names)}".rstrip())
    return "\n".join(lines)


def _confused(row: np.ndarray, name: str, class_names: Sequence[str], most: int = 3) -> str:
    """What a class was mostly taken for instead."""
    others = [(int(n), other) for n, other in zip(row, class_names, strict=True) if n and other != name]
    others.sort(key=lambda pair: -pair[0])
    return "called " + ", ".join(f"{other} {n}" for n, other in others[:most]) if others else ""
