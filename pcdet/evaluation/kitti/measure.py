"""Average precision of one class from overlaps and states, whatever the boxes were: shared by both metrics."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pcdet.evaluation.kitti.matching import COUNTED, count_matches, matched_scores
from pcdet.evaluation.kitti.precision import (
    RECALL_POSITIONS,
    exact_average_precision,
    r11,
    r40,
    sampled_precision,
    score_thresholds,
    share,
)


class Score(NamedTuple):
    """One number of the table. Percent."""

    r11: float
    r40: float
    exact: float | None  # with every step of recall; only where there are fewer ground truths than recall positions
    curve: np.ndarray  # (41,) precision at the recall positions


@dataclass(frozen=True)
class Entry:
    """A class under one metric and minimum overlap. Tuples run over the levels: KITTI's difficulties, or bands."""

    class_name: str
    metric: str  # "bbox", "bev", "3d" or "aos"
    loose: bool
    min_overlap: float
    scores: tuple[Score, ...] | None  # None: not evaluated, because nothing usable was detected or alpha is unknown
    ground_truths: tuple[int, ...]
    detections: tuple[int, ...]
    too_low: int = 0  # ground truths of the class that no difficulty counts because of their height in the image


def measure(
    frames: np.ndarray,  # (F + 1, 3) int64
    overlaps: np.ndarray,  # (P,)
    truth_state: np.ndarray,  # (G,) int64
    found_state: np.ndarray,  # (D,) int64
    scores: np.ndarray,  # (D,)
    min_overlap: float,
    *,
    forgiven: np.ndarray | None = None,  # (D,) bool
    turn: np.ndarray | None = None,  # (P,) radians
) -> tuple[Score, Score]:
    """Average precision, and the same with each match weighted by the similarity of orientation.

    ``frames``, pairs and states are laid out as :mod:`pcdet.evaluation.kitti.matching` says. ``forgiven`` marks
    detections that are no false positives where they match nothing; ``turn`` is the difference of direction of each
    pair (without it the second score equals the first).
    """
    truths = int((truth_state == COUNTED).sum())
    forgiven = np.zeros(len(scores), dtype=bool) if forgiven is None else forgiven
    turn = np.zeros(len(overlaps)) if turn is None else turn
    common = (frames, overlaps, truth_state, found_state, scores)
    matched = matched_scores(*common, min_overlap)

    def counts(thresholds: np.ndarray) -> np.ndarray:  # (T, 3)
        return count_matches(*common, forgiven, turn, thresholds, min_overlap)

    sampled = counts(score_thresholds(matched, truths))
    every = counts(np.unique(matched)[::-1]) if 0 < truths < RECALL_POSITIONS else None
    return _score(sampled, every, 0, truths), _score(sampled, every, 2, truths)


def _score(sampled: np.ndarray, every: np.ndarray | None, column: int, truths: int) -> Score:
    """``column`` of the counts (T, 3) over all positives. Columns: true, false positives, similarity."""
    curve = sampled_precision(share(sampled[:, column], sampled[:, 0] + sampled[:, 1]))
    exact = None
    if every is not None:
        exact = exact_average_precision(share(every[:, column], every[:, 0] + every[:, 1]), every[:, 0], truths)
    return Score(r11(curve), r40(curve), exact, curve)
