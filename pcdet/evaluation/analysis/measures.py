"""What stands behind an average precision: by band, by score, by orientation."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pcdet.evaluation.analysis.objects import Objects
from pcdet.evaluation.kitti.matching import COUNTED
from pcdet.evaluation.kitti.measure import Candidates, measure
from pcdet.evaluation.kitti.precision import share
from pcdet.evaluation.lidar.bands import Band

MOST_THRESHOLDS = 200  # of a precision-recall curve
BINS = 10  # of score calibration


class BandRow(NamedTuple):
    """One class in one band. Percent; ``None`` without ground truth."""

    band: str
    ground_truths: int
    detections: int  # those that can be right or wrong in the band, of any score
    ap: float | None  # 40 positions
    exact: float | None  # area under the whole curve, where the ground truths are fewer than recall positions
    found: int  # ground truths found at the score threshold


class Curve(NamedTuple):
    """Precision and recall at falling score thresholds, (T,) each."""

    score: np.ndarray
    recall: np.ndarray
    precision: np.ndarray


class Orientation(NamedTuple):
    """Heading errors of the true positives from the score threshold on. Degrees; ``None`` without any."""

    matches: int
    mean: float | None
    median: float | None
    axis_mean: float | None  # where front and back do not matter: from 0 to 90
    flipped: float | None  # part, 0 to 1, that is off by more than 90


class Bin(NamedTuple):
    """Detections whose scores lie in [low, high), or up to 1 in the last."""

    low: float
    high: float
    detections: int
    right: int
    mean_score: float | None


def band_row(objects: Objects, name: str, min_overlap: float, band: Band, score: float) -> BandRow:
    """AP and recall of a class in a band."""
    some = objects.candidates(name, min_overlap, band)
    truths, right = some.truths, some.right(some.matches(score))
    ap = measure(some)[0] if truths else None
    return BandRow(
        band.name,
        truths,
        int(some.blamed.sum()),
        None if ap is None else ap.r40,
        None if ap is None else ap.exact,
        int(right.sum()),
    )


def curve(some: Candidates) -> Curve:
    """Precision over recall. Empty without ground truth or without a hit."""
    scores = np.unique(some.true_scores())[::-1]
    if len(scores) > MOST_THRESHOLDS:
        scores = scores[np.linspace(0, len(scores) - 1, MOST_THRESHOLDS).astype(int)]
    if not some.truths:
        scores = scores[:0]
    counts = some.counts(scores)
    return Curve(scores, counts[:, 0] / max(some.truths, 1), share(counts[:, 0], counts[:, 0] + counts[:, 1]))


def orientation(objects: Objects, name: str, min_overlap: float, score: float) -> Orientation:
    """How far the headings of found objects are off."""
    some = objects.candidates(name, min_overlap)
    right = some.right(some.matches(score))
    turn = objects.truth.heading[some.truth[right]] - objects.found.heading[some.found[right]]
    error = np.degrees(np.abs((turn + np.pi) % (2 * np.pi) - np.pi))
    if not len(error):
        return Orientation(0, None, None, None, None)
    axis = np.minimum(error, 180 - error)
    return Orientation(
        len(error), float(error.mean()), float(np.median(error)), float(axis.mean()), float((error > 90).mean())
    )


def calibration(objects: Objects, name: str, min_overlap: float) -> list[Bin] | None:
    """How often detections of a score are right, all of them matched at once; ``None`` for scores outside 0 to 1.

    Detections that lie on what is not asked for are left out.
    """
    some = objects.candidates(name, min_overlap)
    scores = some.scores[some.found_state == COUNTED]
    if len(scores) and not (scores.min() >= 0 and scores.max() <= 1):
        return None
    matches = some.matches(-np.inf)
    right = np.zeros(len(some.scores), dtype=bool)
    right[some.found[some.right(matches)]] = True
    judged = some.found_state == COUNTED
    judged[some.found[matches & ~some.right(matches)]] = False
    place = np.minimum((some.scores * BINS).astype(int), BINS - 1)
    return [_bin(b, some.scores[judged & (place == b)], right[judged & (place == b)]) for b in range(BINS)]


def _bin(position: int, scores: np.ndarray, right: np.ndarray) -> Bin:
    mean = float(scores.mean()) if len(scores) else None
    return Bin(position / BINS, (position + 1) / BINS, len(scores), int(right.sum()), mean)


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Mean difference of score and precision over detections (Guo et al., 2017); ``None`` without detections."""
    total = sum(b.detections for b in bins)
    gaps = [abs(b.mean_score * b.detections - b.right) for b in bins if b.mean_score is not None]
    return sum(gaps) / total if total else None
