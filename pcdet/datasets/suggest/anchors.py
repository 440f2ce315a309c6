"""Sizes of anchors: clusters of the sizes of labelled boxes."""

from typing import NamedTuple

import numpy as np

from pcdet.datasets.checks.model import best_anchor_overlaps

GOOD = 0.7  # mean overlap with the nearest anchor at which one size more is not worth its anchors
GAIN = 0.08  # mean overlap that another size must add
MOST = 3  # sizes of a class
FEWEST = 10  # boxes that carry a size of their own
LONG = 2.5  # metres; longer classes are matched at higher overlaps


class Anchors(NamedTuple):
    """The anchors of a class, and how well they fit."""

    name: str
    sizes: np.ndarray  # (A, 3)
    bottom: float
    overlap: float  # mean, over the boxes, of that with the nearest size at its own place, from above
    boxes: int
    mean: np.ndarray  # (3,) mean size

    @property
    def thresholds(self) -> tuple[float, float]:
        """Matched and unmatched overlaps: KITTI's of cars for long classes, of pedestrians for others."""
        return (0.6, 0.45) if self.sizes[:, 0].max() > LONG else (0.5, 0.35)


def cluster_sizes(sizes: np.ndarray, count: int, rounds: int = 50) -> np.ndarray:
    """(M, 3) sizes -> (count, 3) medians of clusters, by length: k-means on logarithms from quantiles of length."""
    logs = np.log(sizes)
    order = np.argsort(sizes[:, 0], kind="stable")
    centres = np.stack([np.median(logs[part], axis=0) for part in np.array_split(order, count)])
    nearest = np.full(len(sizes), -1)
    for _ in range(rounds):
        distances = np.square(logs[:, None] - centres[None]).sum(axis=2)  # (M, count)
        if np.array_equal(nearest, nearest := distances.argmin(axis=1)):
            break
        centres = np.stack(
            [np.median(logs[nearest == k], axis=0) if (nearest == k).any() else centres[k] for k in range(count)]
        )
    return np.exp(centres[np.argsort(centres[:, 0])])


def anchors_for(name: str, boxes: np.ndarray) -> Anchors:
    """(M, 7) boxes of one class -> as few sizes as fit them well."""
    best = _fitted(name, boxes, 1)
    for count in range(2, min(MOST, len(boxes) // FEWEST) + 1):
        if best.overlap >= GOOD:
            break
        more = _fitted(name, boxes, count)
        if more.overlap < best.overlap + GAIN:
            break
        best = more
    return best


def _fitted(name: str, boxes: np.ndarray, count: int) -> Anchors:
    sizes = cluster_sizes(boxes[:, 3:6], count).round(2)
    overlap = float(best_anchor_overlaps(boxes, sizes).mean())
    bottom = float(np.median(boxes[:, 2] - boxes[:, 5] / 2).round(2)) + 0.0  # no negative zero
    return Anchors(name, sizes, bottom, overlap, len(boxes), boxes[:, 3:6].mean(axis=0).round(2))
