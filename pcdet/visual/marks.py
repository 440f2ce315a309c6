"""What pictures draw of a box: its colour and its text, by class or by verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pcdet.structures.outcomes import NEUTRAL, RIGHT, WRONG, Outcomes
from pcdet.visual.canvas import (
    FALSE_ALARM,
    GROUND_TRUTH,
    HIT,
    MISS,
    NOT_JUDGED,
    as_boxes,
    as_labels,
    class_color,
)

OF_FOUND = {RIGHT: HIT, WRONG: FALSE_ALARM, NEUTRAL: NOT_JUDGED}
OF_TRUTH = {RIGHT: GROUND_TRUTH, WRONG: MISS, NEUTRAL: NOT_JUDGED}


@dataclass(frozen=True)
class Marks:
    """Boxes with a colour and a text each; labels are 1-based, 0 where the class is none of those asked for."""

    boxes: np.ndarray  # (M, 7) float64
    labels: np.ndarray  # (M,) int64
    colors: tuple[str, ...]
    texts: tuple[str, ...]

    def __getitem__(self, places: np.ndarray) -> "Marks":
        """Those at the given positions, in that order."""
        colors, texts = (tuple(row[i] for i in places) for row in (self.colors, self.texts))
        return Marks(self.boxes[places], self.labels[places], colors, texts)

    def finite(self) -> "Marks":
        """Without boxes that hold a number which is not finite."""
        return self[np.flatnonzero(np.isfinite(self.boxes).all(axis=1))]


class LegendRow(NamedTuple):
    """A line of a legend."""

    text: str
    color: str
    dashed: bool


def found_marks(
    boxes: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    scores: Sequence[float] | np.ndarray | None,
    outcomes: Outcomes | None,
    class_names: Sequence[str],
    *,
    named: bool = False,
) -> Marks:
    """Detections. Their colour is the verdict, else the class, and then the text names the class only if ``named``.

    Raises ``ValueError`` for boxes of another shape, labels beyond the classes, missing scores or verdicts.
    """
    boxes = as_boxes(boxes, "boxes")
    labels = as_labels(labels, len(boxes), class_names)
    if scores is not None and len(scores) != len(boxes):
        raise ValueError(f"{len(boxes)} boxes have {len(scores)} scores; every box needs one")
    texts = ["" if scores is None else f"{float(s):.2f}" for s in (labels if scores is None else scores)]
    if named or outcomes is not None:
        texts = [f"{class_names[n - 1]} {text}".strip() for n, text in zip(labels, texts, strict=True)]
    if outcomes is None:
        return Marks(boxes, labels, tuple(class_color(int(n)) for n in labels), tuple(texts))
    _require_verdicts(outcomes.found, len(boxes), "detections")
    return Marks(boxes, labels, tuple(OF_FOUND[int(v)] for v in outcomes.found), tuple(texts))


def truth_marks(boxes: np.ndarray | None, names: Sequence[str] | None, outcomes: Outcomes | None) -> Marks:
    """Labelled boxes: white, or by their verdicts; only those that were not found have a text. Errors as above."""
    boxes = as_boxes(boxes, "gt_boxes")
    labels = np.zeros(len(boxes), dtype=np.int64)
    if outcomes is None:
        return Marks(boxes, labels, (GROUND_TRUTH,) * len(boxes), ("",) * len(boxes))
    _require_verdicts(outcomes.truth, len(boxes), "labelled boxes")
    names = [""] * len(boxes) if names is None else names
    if len(names) != len(boxes):
        raise ValueError(f"{len(boxes)} labelled boxes have {len(names)} names; every box needs one")
    texts = tuple("" if v == RIGHT else str(name) for name, v in zip(names, outcomes.truth, strict=True))
    return Marks(boxes, labels, tuple(OF_TRUTH[int(v)] for v in outcomes.truth), texts)


def _require_verdicts(verdicts: np.ndarray, count: int, what: str) -> None:
    if len(verdicts) != count:
        raise ValueError(f"{count} {what} have {len(verdicts)} verdicts; every box needs one")


def class_legend(labels: np.ndarray, class_names: Sequence[str], truths: int | None) -> list[LegendRow]:
    """Every class with the number of its detections, and the labelled boxes if there are labels."""
    rows = [
        LegendRow(f"{name} ({np.count_nonzero(labels == n)})", class_color(n), False)
        for n, name in enumerate(class_names, start=1)
    ]
    return rows if truths is None else [*rows, LegendRow(f"labelled ({truths})", GROUND_TRUTH, True)]


def verdict_legend(outcomes: Outcomes) -> list[LegendRow]:
    """Every kind of verdict with the number of its boxes; of neutral ones only where there are some."""
    found, truth = ({v: int((side == v).sum()) for v in (RIGHT, WRONG, NEUTRAL)} for side in outcomes)
    rows = [
        LegendRow(f"hit ({found[RIGHT]})", HIT, False),
        LegendRow(f"false alarm ({found[WRONG]})", FALSE_ALARM, False),
        LegendRow(f"missed ({truth[WRONG]})", MISS, True),
        LegendRow(f"labelled, found ({truth[RIGHT]})", GROUND_TRUTH, True),
    ]
    if found[NEUTRAL]:
        rows.append(LegendRow(f"found, not judged ({found[NEUTRAL]})", NOT_JUDGED, False))
    if truth[NEUTRAL]:
        rows.append(LegendRow(f"labelled, not judged ({truth[NEUTRAL]})", NOT_JUDGED, True))
    return rows
