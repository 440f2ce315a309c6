"""From scores and counts to average precision."""

import numpy as np

RECALL_POSITIONS = 41  # 0, 1/40, ..., 1


def score_thresholds(scores: np.ndarray, ground_truths: int) -> np.ndarray:
    """Scores of true positives at which recall comes closest to each of the 41 positions, from high to low.

    ``scores`` are those of all true positives. A score is left out if the next one's recall lies nearer to the wanted
    position; the last is always kept (Everingham et al., VOC, as KITTI's devkit samples it).
    """
    scores = np.sort(scores)[::-1]
    kept, wanted = [], 0.0
    for i, score in enumerate(scores):
        here, following = (i + 1) / ground_truths, (i + 2) / ground_truths
        if i < len(scores) - 1 and following - wanted < wanted - here:
            continue
        kept.append(score)
        wanted += 1 / (RECALL_POSITIONS - 1)
    return np.array(kept, dtype=np.float64)


def best_from_here(values: np.ndarray) -> np.ndarray:
    """(T,) -> (T,) the largest of each value and all later ones."""
    return np.maximum.accumulate(values[::-1])[::-1]


def sampled_precision(values: np.ndarray) -> np.ndarray:
    """(T,) precisions at the thresholds -> (41,) at the recall positions; positions never reached hold 0."""
    curve = np.zeros(RECALL_POSITIONS)
    curve[: len(values)] = best_from_here(values)
    return curve


def r40(curve: np.ndarray) -> float:
    """Percent: the mean of positions 1 to 40 of a (41,) curve (KITTI since 2019)."""
    return float(100 * curve[1:].sum() / 40)


def r11(curve: np.ndarray) -> float:
    """Percent: the mean of positions 0, 4, ..., 40 of a (41,) curve (KITTI before 2019)."""
    return float(100 * curve[::4].sum() / 11)


def exact_average_precision(values: np.ndarray, true_positives: np.ndarray, ground_truths: int) -> float:
    """Percent: the area under precision over recall, every step of recall counted where it is.

    ``values`` (T,) and ``true_positives`` (T,) belong to falling score thresholds, one at every true positive. Sampled
    precision cannot see fewer steps than positions: one ground truth found once is 100 here, 0 with 40 positions.
    """
    steps = np.diff(np.maximum.accumulate(np.concatenate([[0.0], true_positives / ground_truths])))
    return float(100 * (steps * best_from_here(values)).sum()) if len(values) else 0.0


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, and 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
