"""KITTI's two greedy matchings as CPU kernels that run over all frames.

Arrays: ``frames`` (F + 1, 3) int64, where the detections, the ground truths and the pairs of a frame begin;
``overlaps`` (P,) of the pairs, detections running fastest; states (int64) as named below.
"""

import numpy as np

from pcdet.ops.compile import Kernel, device_function

COUNTED = 0
IGNORED = 1  # neither asked for nor held against anybody, but it can be matched
OTHER = -1  # of another class: not looked at


@device_function
def _best_scored(overlaps, pair, first, last, found_state, scores, taken, min_overlap):
    """The untaken detection with the highest score, the first of equal ones; or -1."""
    best = -1
    for found in range(first, last):
        if found_state[found] != OTHER and not taken[found] and overlaps[pair + found - first] > min_overlap:
            if best < 0 or scores[found] > scores[best]:
                best = found
    return best


@Kernel
def matched_scores(frames, overlaps, truth_state, found_state, scores, min_overlap):
    """Scores of the true positives when every ground truth, in file order, takes its best-scored detection."""
    out = np.empty(truth_state.shape[0], dtype=np.float64)
    taken = np.zeros(scores.shape[0], dtype=np.bool_)
    count = 0
    for f in range(frames.shape[0] - 1):
        first, last, pair = frames[f, 0], frames[f + 1, 0], frames[f, 2]
        for truth in range(frames[f, 1], frames[f + 1, 1]):
            if truth_state[truth] != OTHER:
                best = _best_scored(overlaps, pair, first, last, found_state, scores, taken, min_overlap)
                if best >= 0:
                    taken[best] = True
                    if truth_state[truth] == COUNTED and found_state[best] == COUNTED:
                        out[count] = scores[best]
                        count += 1
            pair += last - first
    return out[:count]


@device_function
def _nearest(overlaps, pair, first, last, found_state, scores, threshold, used, stamp, min_overlap):
    """The detection a ground truth takes: the largest overlap of those that count, else the first ignored; or -1."""
    best, spare, most = -1, -1, min_overlap
    for found in range(first, last):
        if found_state[found] == OTHER or scores[found] < threshold or used[found] == stamp:
            continue
        overlap = overlaps[pair + found - first]
        if found_state[found] == COUNTED and overlap > most:
            best, most = found, overlap
        elif found_state[found] == IGNORED and spare < 0 and overlap > min_overlap:
            spare = found
    return best if best >= 0 else spare


@Kernel
def count_matches(frames, overlaps, truth_state, found_state, scores, forgiven, turn, thresholds, min_overlap):
    """(T, 3): true positives, false positives and summed orientation similarity from each score threshold on.

    ``forgiven`` (D,) marks detections that are no false positives even if unmatched; ``turn`` (P,) is the
    difference of alpha of each pair.
    """
    out = np.zeros((thresholds.shape[0], 3), dtype=np.float64)
    used = np.full(scores.shape[0], -1, dtype=np.int64)  # the last threshold at which a detection was taken
    for t in range(thresholds.shape[0]):
        for f in range(frames.shape[0] - 1):
            first, last, pair = frames[f, 0], frames[f + 1, 0], frames[f, 2]
            for truth in range(frames[f, 1], frames[f + 1, 1]):
                if truth_state[truth] != OTHER:
                    best = _nearest(
                        overlaps, pair, first, last, found_state, scores, thresholds[t], used, t, min_overlap
                    )
                    if best >= 0:
                        used[best] = t
                        if truth_state[truth] == COUNTED and found_state[best] == COUNTED:
                            out[t, 0] += 1.0
                            out[t, 2] += (1.0 + np.cos(turn[pair + best - first])) / 2.0
                pair += last - first
        for found in range(scores.shape[0]):
            unmatched = found_state[found] == COUNTED and used[found] != t and scores[found] >= thresholds[t]
            if unmatched and not forgiven[found]:
                out[t, 1] += 1.0
    return out
