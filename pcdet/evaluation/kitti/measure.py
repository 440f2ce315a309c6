"""Average precision of one class from overlaps and states, whatever the boxes were: shared by both metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pcdet.evaluation.kitti.matching import COUNTED, OTHER, match, matched_scores
from pcdet.evaluation.kitti.overlap import Pairs
from pcdet.evaluation.kitti.precision import (
    RECALL_POSITIONS,
    exact_average_precision,
    r11,
    r40,
    sampled_precision,
    score_thresholds,
    share,
)

LOW = "too low in the image"
FORGIVEN = "in DontCare regions (no false alarms of bbox)"


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
    removed_truths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # filter -> how many; none twice
    removed_detections: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def too_low(self) -> int:
        """Ground truths of the class that no difficulty counts because of their height in the image."""
        return min(self.removed_truths.get(LOW, (0,)))


@dataclass(frozen=True)
class Candidates:
    """What one class is matched from, at one level of difficulty and minimum overlap."""

    truth: np.ndarray  # (P,) rows of the pairs that can match, as the kernels of ``matching`` want them
    found: np.ndarray  # (P,)
    overlaps: np.ndarray  # (P,)
    similarity: np.ndarray  # (P,) of orientation, 0 to 1
    truth_state: np.ndarray  # (G,) int64
    found_state: np.ndarray  # (D,) int64
    scores: np.ndarray  # (D,)
    blamed: np.ndarray  # (D,) bool: a false positive where it matches nothing

    @property
    def truths(self) -> int:
        """Ground truths that are asked for."""
        return int((self.truth_state == COUNTED).sum())

    def true_scores(self) -> np.ndarray:
        """(M,) scores of the true positives when each ground truth takes the best-scored detection."""
        return matched_scores(self.truth, self.found, self.truth_state, self.found_state, self.scores)

    def matches(self, threshold: float) -> np.ndarray:
        """(P,) bool: the pairs that match among the detections from a score on."""
        states = (self.truth_state, self.found_state)
        return match(self.truth, self.found, self.overlaps, *states, self.scores, float(threshold))

    def right(self, matches: np.ndarray) -> np.ndarray:
        """(P,) bool: those of ``matches`` that are true positives."""
        counted = (self.truth_state[self.truth] == COUNTED) & (self.found_state[self.found] == COUNTED)
        return matches & counted

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        """(T, 3): true positives, false positives and summed similarity from each score threshold on."""
        ranked = np.sort(self.scores[self.blamed])
        out = np.zeros((len(thresholds), 3))
        for row, threshold in zip(out, thresholds, strict=True):
            matches = self.matches(threshold)
            right = self.right(matches)
            above = len(ranked) - np.searchsorted(ranked, threshold)
            row[:] = right.sum(), above - self.blamed[self.found[matches]].sum(), self.similarity[right].sum()
        return out


def candidates(
    pairs: Pairs,
    overlaps: np.ndarray,  # (P,)
    truth_state: np.ndarray,  # (G,) int64
    found_state: np.ndarray,  # (D,) int64
    scores: np.ndarray,  # (D,)
    min_overlap: float,
    *,
    forgiven: np.ndarray | None = None,  # (D,) bool
    turn: np.ndarray | None = None,  # (P,) radians
) -> Candidates:
    """The pairs above the minimum overlap whose sides both take part.

    ``forgiven`` marks detections that are no false positives where they match nothing; ``turn`` is the difference of
    direction of each pair.
    """
    near = overlaps > min_overlap
    near &= (truth_state != OTHER)[pairs.truth] & (found_state != OTHER)[pairs.found]
    similarity = np.ones(near.sum()) if turn is None else (1 + np.cos(turn[near])) / 2
    blamed = found_state == COUNTED if forgiven is None else (found_state == COUNTED) & ~forgiven
    rows = (pairs.truth[near], pairs.found[near], overlaps[near])
    return Candidates(*rows, similarity, truth_state, found_state, scores, blamed)


def measure(from_these: Candidates) -> tuple[Score, Score]:
    """Average precision, and the same with each match weighted by the similarity of orientation."""
    truths, scores = from_these.truths, from_these.true_scores()
    sampled = from_these.counts(score_thresholds(scores, truths))
    every = from_these.counts(np.unique(scores)[::-1]) if 0 < truths < RECALL_POSITIONS else None
    return _score(sampled, every, 0, truths), _score(sampled, every, 2, truths)


def _score(sampled: np.ndarray, every: np.ndarray | None, column: int, truths: int) -> Score:
    """``column`` of the counts (T, 3) over all positives. Columns: true, false positives, similarity."""
    curve = sampled_precision(share(sampled[:, column], sampled[:, 0] + sampled[:, 1]))
    exact = None
    if every is not None:
        exact = exact_average_precision(share(every[:, column], every[:, 0] + every[:, 1]), every[:, 0], truths)
    return Score(r11(curve), r40(curve), exact, curve)
