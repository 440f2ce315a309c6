"""The charts of a detector's analysis: precision and recall, AP by kind of object, calibration, confusions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pcdet.visual.canvas import new_figure, save_png
from pcdet.visual.confusion import draw_confusion
from pcdet.visual.curves import COLORS

WIDTH, HEIGHT = 900, 620  # pixels


def draw_analysis(data: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Draw ``precision_recall.png``, ``bands.png``, ``calibration.png`` and ``confusion.png``; returns their paths.

    ``data`` is what ``pcdet.evaluation.analysis.Analysis.as_json`` gives, or a file of it read again.
    """
    folder, classes = Path(folder), data["classes"]
    matrix = np.array(data["confusion"]["counts"])
    title = f"{np.trace(matrix)} of {matrix[:-1].sum()} labelled found, {matrix[-1].sum()} false alarms"
    return [
        draw_precision_recall(classes, folder / "precision_recall.png"),
        draw_bands(classes, folder / "bands.png"),
        draw_calibration(classes, folder / "calibration.png"),
        draw_confusion(matrix, data["confusion"]["names"], folder / "confusion.png", title=title),
    ]


def draw_precision_recall(classes: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """A curve a class; the point of the score nearest to each tenth is marked with that score."""
    axes = _axes("recall", "precision", "Precision over recall, 3-D IoU")
    for color, (name, measures) in zip(COLORS, classes.items(), strict=False):
        curve, whole = measures["precision_recall"], measures["bands"][0]
        label = f"{name}, IoU > {measures['min_overlap']:g}: " + (
            f"AP {whole['ap']:.1f} ({whole['ground_truths']} objects)" if whole["ap"] is not None else "no object"
        )
        axes.plot(curve["recall"], curve["precision"], color=color, linewidth=1.8, label=label)
        for mark in np.arange(0.1, 1.0, 0.2) if len(curve["score"]) else ():
            nearest = int(np.abs(np.array(curve["score"]) - mark).argmin())
            if abs(curve["score"][nearest] - mark) < 0.05:
                place = (curve["recall"][nearest], curve["precision"][nearest])
                axes.plot(*place, "o", color=color, markersize=4)
                axes.annotate(f"{mark:.1f}", place, fontsize=7, xytext=(3, 3), textcoords="offset points")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    _legend(axes)
    return save_png(axes.figure, path)


def draw_bands(classes: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """AP of each class in each band as bars, with the number of objects over them; no bar without an object."""
    axes = _axes("", "AP R40, percent", "Average precision by kind of object (above each bar: objects)")
    bands = [row["band"] for row in next(iter(classes.values()))["bands"]]
    width = 0.8 / max(len(classes), 1)
    for position, (color, (name, measures)) in enumerate(zip(COLORS, classes.items(), strict=False)):
        rows = measures["bands"]
        x = np.arange(len(bands)) + (position - (len(classes) - 1) / 2) * width
        heights = [row["ap"] if row["ap"] is not None else 0.0 for row in rows]
        axes.bar(x, heights, width, color=color, label=name)
        for place, height, row in zip(x, heights, rows, strict=True):
            text = str(row["ground_truths"]) if row["ap"] is not None else "n/a"
            axes.text(place, height + 1, text, ha="center", fontsize=7, rotation=90, va="bottom")
    axes.set_xticks(np.arange(len(bands)), bands, rotation=30, ha="right", fontsize=9)
    axes.set_ylim(0, 115)
    _legend(axes)
    return save_png(axes.figure, path)


def draw_calibration(classes: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """Part of the detections that are right over their score; on the diagonal a score means what it says."""
    axes = _axes("mean score of the detections in a bin", "part of them that is right", "Calibration of the scores")
    axes.plot([0, 1], [0, 1], color="#999999", linestyle="--", linewidth=1)
    for position, (color, (name, measures)) in enumerate(zip(COLORS, classes.items(), strict=False)):
        bins = [b for b in measures["calibration"]["bins"] if b["detections"]]
        error = measures["calibration"]["error"]
        label = f"{name}: mean gap {error:.1%}" if error is not None else f"{name}: n/a"
        scores, parts = [b["mean_score"] for b in bins], [b["right"] / b["detections"] for b in bins]
        axes.plot(scores, parts, "o-", color=color, linewidth=1.6, markersize=4, label=label)
        for score, part, b in zip(scores, parts, bins, strict=True):
            place = {"xytext": (3, -9 - 8 * position), "textcoords": "offset points"}  # below those of other classes
            axes.annotate(str(b["detections"]), (score, part), fontsize=7, color=color, **place)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    _legend(axes)
    return save_png(axes.figure, path)


def _axes(x: str, y: str, title: str) -> Axes:
    figure = new_figure(WIDTH, HEIGHT)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x, fontsize=10)
    axes.set_ylabel(y, fontsize=10)
    axes.set_title(title, fontsize=12)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def _legend(axes: Axes) -> None:
    handles: Sequence[Any] = axes.get_legend_handles_labels()[0]
    if handles:
        axes.legend(fontsize=9, framealpha=0.85)
