"""All measures of all classes in one place, as text and as plain data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pcdet.evaluation.analysis.measures import (
    BandRow,
    Bin,
    Curve,
    Orientation,
    band_row,
    calibration,
    calibration_error,
    curve,
    orientation,
)
from pcdet.evaluation.analysis.objects import ALL, Objects
from pcdet.evaluation.analysis.outcomes import confusion
from pcdet.evaluation.classes import min_overlaps_of
from pcdet.evaluation.lidar.bands import Band, make_bands
from pcdet.evaluation.report import NOT_EVALUATED, aligned

DISTANCES, POINTS = (20, 40), (5, 20, 100)
OCCLUSIONS = ("fully visible", "partly occluded", "largely occluded", "unknown")
NOTHING = "nothing"  # the last row and column of the confusion matrix


class ClassAnalysis(NamedTuple):
    """One class at its minimum overlap."""

    name: str
    min_overlap: float
    labelled: int  # ground truths of the class before any filter
    removed: dict[str, int]  # filter -> ground truths that it takes away
    detections: int  # of the class, before any filter
    removed_detections: dict[str, int]
    bands: tuple[BandRow, ...]  # the first is that of all objects
    curve: Curve
    orientation: Orientation
    calibration: list[Bin] | None


@dataclass(frozen=True)
class Analysis:
    """The measures of all classes; detections below ``score`` take part in AP, curves and calibration only."""

    classes: tuple[ClassAnalysis, ...]
    confusion: np.ndarray  # (K + 1, K + 1)
    score: float
    frames: int

    @property
    def names(self) -> list[str]:
        """Names of rows and columns of the confusion matrix."""
        return [*(c.name for c in self.classes), NOTHING]

    @property
    def text(self) -> str:
        """The tables, with the counts behind every number."""
        head = (
            f"Analysis of {self.frames} frames by 3-D IoU. Recall, headings and confusions: detections from a score of "
            f"{self.score:g} on; AP and calibration: all of them."
        )
        parts = [head, *_filters(self.classes), "", _band_table(self.classes), "", _orientation_table(self.classes)]
        return "\n".join([*parts, "", _calibration_table(self.classes), "", self._confusion_table()])

    def _confusion_table(self) -> str:
        counts = self.confusion
        rows = [["labelled \\ called", *self.names[:-1], "missed", "labelled"]]
        for name, row in zip(self.names[:-1], counts, strict=False):
            rows.append([name, *map(str, row), str(row.sum())])
        rows.append([NOTHING, *map(str, counts[-1, :-1]), "-", "-"])
        rows.append(["detections", *map(str, counts[:, :-1].sum(axis=0)), "-", str(counts[:-1].sum())])
        return aligned(rows, left=1)

    def as_json(self) -> dict[str, Any]:
        """Plain data: names, numbers, lists. ``None`` where there is nothing to measure."""
        classes = {c.name: _class_json(c) for c in self.classes}
        matrix = {"names": self.names, "counts": self.confusion.tolist()}
        return {"frames": self.frames, "score_threshold": self.score, "classes": classes, "confusion": matrix}


def analyse(
    objects: Objects,
    class_names: Sequence[str],
    *,
    score: float = 0.3,
    min_overlaps: Mapping[str, tuple[float, float]] | None = None,
) -> Analysis:
    """Measure every class at its strict overlap in space.

    Args:
        objects: From :func:`kitti_objects` or :func:`lidar_objects`.
        class_names: What to analyse.
        score: Recall, headings and confusions count detections from it on.
        min_overlaps: Class -> (strict, loose), where they shall differ from KITTI's.
    """
    overlaps = [pair.strict for pair in min_overlaps_of(class_names, min_overlaps)]
    bands = _bands(objects)
    classes = tuple(
        _class_analysis(objects, name, overlap, bands, score)
        for name, overlap in zip(class_names, overlaps, strict=True)
    )
    matrix = confusion(objects, class_names, overlaps, score)
    return Analysis(classes, matrix, score, len(objects.truth.starts) - 1)


def _bands(objects: Objects) -> list[Band]:
    known = objects.truth.points is not None
    bands = list(make_bands(DISTANCES, POINTS if known else ()))
    if objects.truth.occluded is not None:
        bands += [Band(name, "occlusion", level, level + 1) for level, name in enumerate(OCCLUSIONS)]
    return bands


def _class_analysis(objects: Objects, name: str, overlap: float, bands: Sequence[Band], score: float) -> ClassAnalysis:
    truth, found = objects.truth.names == name.lower(), objects.found.names == name.lower()
    low = int((found & objects.low).sum())
    return ClassAnalysis(
        name,
        overlap,
        int(truth.sum()),
        {why: int((truth & mask).sum()) for why, mask in objects.removed.items()},
        int(found.sum()),
        {"too low in the image": low} if low else {},
        tuple(band_row(objects, name, overlap, band, score) for band in bands),
        curve(objects.candidates(name, overlap, ALL)),
        orientation(objects, name, overlap, score),
        calibration(objects, name, overlap),
    )


def _class_json(c: ClassAnalysis) -> dict[str, Any]:
    error = calibration_error(c.calibration) if c.calibration is not None else None
    return {
        "min_overlap": c.min_overlap,
        "ground_truths": {"labelled": c.labelled, "removed": c.removed},
        "detections": {"all": c.detections, "removed": c.removed_detections},
        "bands": [row._asdict() for row in c.bands],
        "precision_recall": {key: values.tolist() for key, values in c.curve._asdict().items()},
        "orientation_degrees": c.orientation._asdict(),
        "calibration": {"error": error, "bins": [b._asdict() for b in c.calibration or ()]},
    }


def _filters(classes: Sequence[ClassAnalysis]) -> Iterator[str]:
    for c in classes:
        sides = []
        for count, what, removed in (
            (c.labelled, "ground truths", c.removed),
            (c.detections, "detections", c.removed_detections),
        ):
            parts = ", ".join(f"{number} {why}" for why, number in removed.items() if number)
            sides.append(f"{count} {what}" + (f" (left out: {parts})" if parts else ""))
        yield f"{c.name}, IoU > {c.min_overlap:.2f}: " + "; ".join(sides)


def _band_table(classes: Sequence[ClassAnalysis]) -> str:
    rows = [["class", "objects", "AP R40", "exact AP", "recall", "found", "truths", "detections"]]
    for c in classes:
        for row in c.bands:
            recall = row.found / row.ground_truths if row.ground_truths else None
            numbers = [_number(row.ap), "-" if row.exact is None and row.ground_truths else _number(row.exact)]
            counts = [str(row.found), str(row.ground_truths), str(row.detections)]
            rows.append([c.name, row.band, *numbers, _number(recall, 100), *counts])
    return aligned(rows, left=2)


def _orientation_table(classes: Sequence[ClassAnalysis]) -> str:
    rows = [["class", "heading error, mean", "median", "front or back aside", "flipped", "found"]]
    for c in classes:
        o = c.orientation
        cells = [_number(v, unit=" deg") for v in (o.mean, o.median, o.axis_mean)]
        rows.append([c.name, *cells, _number(o.flipped, 100, " %"), str(o.matches)])
    return aligned(rows, left=1)


def _calibration_table(classes: Sequence[ClassAnalysis]) -> str:
    names = [f"{c.name}: right of detections" for c in classes]
    rows = [["score", *names]]
    for b in range(10):
        bins = [c.calibration[b] if c.calibration is not None else None for c in classes]
        rows.append([f"{b / 10:.1f} to {(b + 1) / 10:.1f}", *map(_bin_cell, bins)])
    errors = [calibration_error(c.calibration) if c.calibration is not None else None for c in classes]
    rows.append(["mean gap", *(_number(e, 100, " %") for e in errors)])
    return aligned(rows, left=1)


def _bin_cell(found: Bin | None) -> str:
    if found is None or not found.detections:
        return NOT_EVALUATED
    return f"{found.right / found.detections:6.1%} ({found.right} of {found.detections})"


def _number(value: float | None, factor: float = 1, unit: str = "") -> str:
    return NOT_EVALUATED if value is None else f"{value * factor:.2f}{unit}"
