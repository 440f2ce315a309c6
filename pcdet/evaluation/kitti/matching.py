"""KITTI's two greedy matchings as CPU kernels that run over the pairs which can match at all.

Such pairs overlap by more than the minimum, and neither side is of another class. They stand in the order of ground
truths, and for each of them in the order of detections: both as in the files.
"""

import numpy as np

from pcdet.ops.compile import Kernel

COUNTED = 0
IGNORED = 1  # neither asked for nor held against anybody, but it can be matched
OTHER = -1  # of another class: not looked at


@Kernel
def matched_scores(truth, found, truth_state, found_state, scores):
    """Scores of the true positives when every ground truth, in file order, takes its best-scored detection.

    ``truth`` and ``found`` (P,) are the rows of each pair. Of equal scores the first in the file is taken.
    """
    pairs = truth.shape[0]
    out = np.empty(pairs, dtype=np.float64)
    taken = np.zeros(scores.shape[0], dtype=np.bool_)
    count, p = 0, 0
    while p < pairs:
        row, best = truth[p], -1
        while p < pairs and truth[p] == row:
            f = found[p]
            if not taken[f] and (best < 0 or scores[f] > scores[best]):
                best = f
            p += 1
        if best >= 0:
            taken[best] = True
            if truth_state[row] == COUNTED and found_state[best] == COUNTED:
                out[count] = scores[best]
                count += 1
    return out[:count]


@Kernel
def match(truth, found, overlaps, truth_state, found_state, scores, threshold):
    """(P,) bool: which pairs match among the detections from a score on.

    Every ground truth, in file order, takes the detection of the largest overlap that counts, of equal ones the first;
    where none is left, the first ignored one.
    """
    pairs = truth.shape[0]
    out = np.zeros(pairs, dtype=np.bool_)
    taken = np.zeros(scores.shape[0], dtype=np.bool_)
    p = 0
    while p < pairs:
        row, best, spare = truth[p], -1, -1
        while p < pairs and truth[p] == row:
            f = found[p]
            if not taken[f] and scores[f] >= threshold:
                if found_state[f] == IGNORED:
                    spare = p if spare < 0 else spare
                elif best < 0 or overlaps[p] > overlaps[best]:
                    best = p
            p += 1
        chosen = best if best >= 0 else spare
        if chosen >= 0:
            out[chosen] = True
            taken[found[chosen]] = True
    return out
