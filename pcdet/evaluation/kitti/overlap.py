"""Overlap of every detection with every ground truth of the same frame, in float64.

A float32 overlap would decide by rounding where it lies on the minimum.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from pcdet.evaluation.classes import DONT_CARE
from pcdet.evaluation.kitti.frames import Objects
from pcdet.ops.iou3d import boxes_aligned_overlap_bev


class Solids(Protocol):
    """Upright boxes of all frames, frame after frame."""

    solids: np.ndarray  # (N, 7) a b on the ground, bottom, length, width, height, angle from a to b; metres, radians
    starts: np.ndarray  # (F + 1,) int64; frame f holds the boxes starts[f]:starts[f + 1]

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Pairs:
    """All pairs of a ground truth and a detection of one frame, ground truth after ground truth."""

    truth: np.ndarray  # (P,) row of the ground truth
    found: np.ndarray  # (P,) row of the detection


def pair_up(truth: Solids, found: Solids) -> Pairs:
    """Every ground truth with every detection of its frame."""
    truths, founds = np.diff(truth.starts), np.diff(found.starts)  # (F,) objects a frame
    per_truth = np.repeat(founds, truths)  # (G,) detections beside each ground truth
    first = np.repeat(found.starts[:-1], truths)  # (G,) the first of them
    rows = np.repeat(np.arange(len(truth)), per_truth)  # (P,)
    begin = np.cumsum(per_truth) - per_truth  # (G,) where the pairs of each ground truth begin
    columns = np.arange(len(rows)) - np.repeat(begin - first, per_truth)  # (P,)
    return Pairs(rows, columns)


def bbox_overlaps(truth: Objects, found: Objects, pairs: Pairs) -> np.ndarray:
    """(P,) intersection over union in the image."""
    a, b = truth.bbox[pairs.truth], found.bbox[pairs.found]
    shared = _shared_image_area(a, b)
    return _ratio(shared, _image_area(a) + _image_area(b) - shared)


def dont_care_shares(truth: Objects, found: Objects, pairs: Pairs) -> np.ndarray:
    """(D,) the largest part of each detection's image box that one DontCare region covers."""
    near = np.flatnonzero(truth.names[pairs.truth] == DONT_CARE)
    a, b = truth.bbox[pairs.truth[near]], found.bbox[pairs.found[near]]
    shares = np.zeros(len(found))
    np.maximum.at(shares, pairs.found[near], _ratio(_shared_image_area(a, b), _image_area(b)))
    return shares


def solid_overlaps(truth: Solids, found: Solids, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """(P,) intersection over union seen from above, and (P,) in 3-D. Degenerate boxes overlap nothing.

    Degenerate is a box with a number that is not finite (a height only matters in 3-D) or with w * l <= 0.
    """
    a, b = truth.solids[pairs.truth], found.solids[pairs.found]  # (P, 7)
    area = boxes_aligned_overlap_bev(_flat(truth.solids)[pairs.truth], _flat(found.solids)[pairs.found]).numpy()
    # NaN and infinite sizes have no shared area; the sums may still overflow on the way.
    with np.errstate(invalid="ignore", over="ignore"):
        bev = _ratio(area, _footprint(a) + _footprint(b) - area)
        height = np.minimum(a[:, 2] + a[:, 5], b[:, 2] + b[:, 5]) - np.maximum(a[:, 2], b[:, 2])
        volume = np.where((height > 0) & (area > 0), height * area, 0.0)
        solid = _ratio(volume, _footprint(a) * a[:, 5] + _footprint(b) * b[:, 5] - volume)
    return bev, solid


def _footprint(solids: np.ndarray) -> np.ndarray:
    return solids[:, 3] * solids[:, 4]


def _flat(solids: np.ndarray) -> torch.Tensor:
    """(N, 7) upright boxes as boxes whose footprints can be compared: degenerate ones have no size."""
    a, b, _, length, width, _, angle = solids.T
    sound = np.isfinite(solids[:, [0, 1, 3, 4, 6]]).all(axis=1) & (length * width > 0)
    # Two negative sizes turn a box by pi, which leaves its footprint as it was.
    flat = np.stack([a, b, np.zeros_like(a), np.abs(length), np.abs(width), np.zeros_like(a), angle], axis=1)
    flat[~sound] = 0.0
    return torch.from_numpy(flat)


def _shared_image_area(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    width = np.minimum(a[:, 2], b[:, 2]) - np.maximum(a[:, 0], b[:, 0])
    height = np.minimum(a[:, 3], b[:, 3]) - np.maximum(a[:, 1], b[:, 1])
    return np.where((width > 0) & (height > 0), width * height, 0.0)


def _image_area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros_like(part), where=(part > 0) & (whole != 0))
