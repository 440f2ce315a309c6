"""Which detections are right and which ground truths are found: the metric's matching, object by object."""

from collections.abc import Sequence

import numpy as np

from pcdet.evaluation.analysis.objects import Objects
from pcdet.evaluation.kitti.matching import COUNTED, IGNORED, match
from pcdet.structures.outcomes import NEUTRAL, RIGHT, WRONG, Outcomes


def outcomes(
    objects: Objects, class_names: Sequence[str], min_overlaps: Sequence[float], score: float
) -> list[Outcomes]:
    """Verdicts of every frame when the detections from ``score`` on are matched, class by class, as for the metric.

    Detections below the score are neutral.
    """
    found = np.full(len(objects.found.names), NEUTRAL, dtype=np.int8)
    truth = np.full(len(objects.truth.names), NEUTRAL, dtype=np.int8)
    for name, overlap in zip(class_names, min_overlaps, strict=True):
        some = objects.candidates(name, overlap)
        matches = some.matches(score)
        right = some.right(matches)
        truth[some.truth_state == COUNTED] = WRONG
        truth[some.truth[right]] = RIGHT
        found[(some.found_state == COUNTED) & (some.scores >= score)] = WRONG
        found[some.found[matches & ~right]] = NEUTRAL
        found[some.found[right]] = RIGHT
    frames = range(len(objects.truth.starts) - 1)
    return [
        Outcomes(found[slice(*objects.found.starts[f : f + 2])], truth[slice(*objects.truth.starts[f : f + 2])])
        for f in frames
    ]


def confusion(objects: Objects, class_names: Sequence[str], min_overlaps: Sequence[float], score: float) -> np.ndarray:
    """(K + 1, K + 1) int64: true class (row) against predicted class (column); last stand nothing there and missed.

    Every ground truth that counts takes the detection of any wanted class, from ``score`` on, with the largest overlap
    above its class's minimum. What lies on a ground truth that does not count is left out.
    """
    names = [name.lower() for name in class_names]
    count = len(names)
    truth_class, found_class = (_index(side.names, names) for side in (objects.truth, objects.found))
    least = np.append(min_overlaps, 1.0)[truth_class]  # (G,)
    near = objects.overlaps > least[objects.pairs.truth]
    near &= (truth_class[objects.pairs.truth] < count) & (found_class[objects.pairs.found] < count)
    truth, found = objects.pairs.truth[near], objects.pairs.found[near]
    wanted = (found_class < count) & (objects.found.scores >= score) & ~objects.low
    found_state = np.where(wanted, COUNTED, IGNORED).astype(np.int64)
    asked = objects.asked & (truth_class < count)
    # Those that count choose first: an object that is not asked for takes nothing from them.
    matched = np.zeros(len(truth), dtype=bool)
    free = np.ones(len(found_class), dtype=bool)
    for turn in (asked, ~asked):
        here = np.flatnonzero(turn[truth] & free[found] & wanted[found])
        overlap = objects.overlaps[near][here]
        state = np.zeros(len(turn), dtype=np.int64)
        taken = here[match(truth[here], found[here], overlap, state, found_state, objects.found.scores, float(score))]
        matched[taken] = True
        free[found[taken]] = False
    out = np.zeros((count + 1, count + 1), dtype=np.int64)
    counted = matched & asked[truth]
    np.add.at(out, (truth_class[truth[counted]], found_class[found[counted]]), 1)
    missed, false = asked.copy(), wanted & free
    missed[truth[counted]] = False
    np.add.at(out, (truth_class[missed], count), 1)
    np.add.at(out, (count, found_class[false]), 1)
    return out


def _index(names: np.ndarray, wanted: Sequence[str]) -> np.ndarray:
    """(N,) position of each name in ``wanted``; others get its length."""
    return np.array([wanted.index(name) if name in wanted else len(wanted) for name in names], dtype=np.int64)
