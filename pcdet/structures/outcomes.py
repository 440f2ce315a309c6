"""Verdicts on detections and labelled objects: what evaluation finds out and pictures show."""

from typing import NamedTuple

import numpy as np

RIGHT, WRONG, NEUTRAL = 1, 0, -1  # of detections: hit, false alarm; of ground truths: found, missed


class Outcomes(NamedTuple):
    """One frame's verdicts. Neutral is what neither counts for nor against: too low, another class, Van for Car."""

    found: np.ndarray  # (D,) int8
    truth: np.ndarray  # (M,) int8
