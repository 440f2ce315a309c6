"""Shape-aware augmentation of objects (SE-SSD, Zheng et al. 2021).

The six pyramids that a box's centre forms with its faces are the parts of an object. In coordinates scaled so that the
box is the cube [-1, 1]^3, a point belongs to the pyramid of the face whose axis its largest coordinate is on.
"""

import numpy as np

from pcdet.datasets.augment.registry import AUGMENTS, AugmentContext
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.structures.boxes import rotate_z
from pcdet.structures.scene import Scene

NUM_PYRAMIDS = 6


def to_unit(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    """(n, 3+) points -> (n, 3) coordinates in which the box is [-1, 1]^3."""
    return rotate_z(points[:, :3] - box[:3], -box[6]) / (box[3:6] / 2)


def from_unit(unit: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The inverse of :func:`to_unit`."""
    return rotate_z(unit * (box[3:6] / 2), box[6]) + box[:3]


def pyramid_of(unit: np.ndarray) -> np.ndarray:
    """(n, 3) unit coordinates -> (n,) pyramid: 0, 1 for -x, +x, then -y, +y, -z, +z."""
    axis = np.abs(unit).argmax(axis=1)
    side = np.take_along_axis(unit, axis[:, None], axis=1)[:, 0] > 0
    return 2 * axis + side


@AUGMENTS.register(name="random_local_pyramid_aug")
class RandomLocalPyramidAug:
    """Drop, thin and swap pyramids of objects, in this order; a pyramid is changed at most once.

    * Each object loses one pyramid, drawn at random, with probability ``drop_prob``.
    * Each remaining pyramid with more than ``sparsify_max_num`` points is thinned to that many with probability
      ``sparsify_prob``.
    * Each remaining pyramid with more than ``swap_max_num`` points is, with probability ``swap_prob``, filled with the
      same pyramid of another such object: positions relative to the box, further channels (intensity) moved into the
      range of those they replace.
    """

    def __init__(
        self,
        context: AugmentContext,
        *,
        drop_prob: float,
        sparsify_prob: float,
        sparsify_max_num: int,
        swap_prob: float,
        swap_max_num: int,
    ):
        for name, p in (("DROP_PROB", drop_prob), ("SPARSIFY_PROB", sparsify_prob), ("SWAP_PROB", swap_prob)):
            if not 0 <= p <= 1:
                raise ValueError(f"random_local_pyramid_aug: {name} is a probability, got {p}")
        self.drop_prob = drop_prob
        self.sparsify_prob = sparsify_prob
        self.sparsify_max_num = sparsify_max_num
        self.swap_prob = swap_prob
        self.swap_max_num = swap_max_num

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        boxes = scene.gt_boxes
        if len(boxes) == 0:
            return scene
        owner, pyramid = self.parts(scene.points, boxes)
        keep = np.ones(len(scene.points), dtype=bool)
        free = np.ones((len(boxes), NUM_PYRAMIDS), dtype=bool)  # not changed yet
        cells = {
            (m, p): np.flatnonzero((owner == m) & (pyramid == p))
            for m in range(len(boxes))
            for p in range(NUM_PYRAMIDS)
        }
        self.drop(cells, keep, free, rng)
        self.sparsify(cells, keep, free, rng)
        replaced = self.swap(scene.points, boxes, cells, keep, free, rng)
        return scene.with_(points=np.concatenate([scene.points[keep], *replaced]))

    @staticmethod
    def parts(points: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each point the first box that holds it (-1: none) and the pyramid it lies in there."""
        inside = points_in_boxes_mask(points, boxes)  # (M, N)
        owner = np.where(inside.any(axis=0), inside.argmax(axis=0), -1)
        pyramid = np.full(len(points), -1)
        for m in np.unique(owner[owner >= 0]):
            own = owner == m
            pyramid[own] = pyramid_of(to_unit(points[own], boxes[m]))
        return owner, pyramid

    def drop(self, cells: dict, keep: np.ndarray, free: np.ndarray, rng: np.random.Generator) -> None:
        """Take one pyramid of every object out of ``keep``, each with ``drop_prob``."""
        for m in range(len(free)):
            p = int(rng.integers(NUM_PYRAMIDS))
            if rng.random() < self.drop_prob:
                keep[cells[m, p]] = False
                free[m, p] = False

    def sparsify(self, cells: dict, keep: np.ndarray, free: np.ndarray, rng: np.random.Generator) -> None:
        """Take the surplus points of crowded pyramids out of ``keep``."""
        for m, p in self.crowded(cells, free, self.sparsify_max_num):
            if rng.random() < self.sparsify_prob:
                surplus = len(cells[m, p]) - self.sparsify_max_num
                keep[rng.choice(cells[m, p], surplus, replace=False)] = False
                free[m, p] = False

    def swap(
        self,
        points: np.ndarray,
        boxes: np.ndarray,
        cells: dict,
        keep: np.ndarray,
        free: np.ndarray,
        rng: np.random.Generator,
    ) -> list[np.ndarray]:
        """The points that take the place of those of the swapped pyramids, which are taken out of ``keep``."""
        crowded = self.crowded(cells, free, self.swap_max_num)
        replaced = []
        for m, p in crowded:
            partners = [other for other, q in crowded if q == p and other != m]
            if rng.random() >= self.swap_prob or not partners:
                continue
            other = int(rng.choice(partners))
            keep[cells[m, p]] = False
            replaced.append(transplant(points[cells[other, p]], boxes[other], points[cells[m, p]], boxes[m]))
        return replaced

    @staticmethod
    def crowded(cells: dict, free: np.ndarray, limit: int) -> list[tuple[int, int]]:
        """The (box, pyramid) pairs that are not changed yet and hold more than ``limit`` points."""
        return [key for key, rows in cells.items() if free[key] and len(rows) > limit]


def transplant(donor: np.ndarray, donor_box: np.ndarray, old: np.ndarray, box: np.ndarray) -> np.ndarray:
    """``donor`` points (n, C) carried from ``donor_box`` to ``box``, their channels in the range of ``old``'s."""
    out = donor.copy()
    out[:, :3] = from_unit(to_unit(donor, donor_box), box)
    low, high = donor[:, 3:].min(axis=0), donor[:, 3:].max(axis=0)
    share = (donor[:, 3:] - low) / np.maximum(high - low, 1e-8)  # (n, C - 3) in [0, 1]
    out[:, 3:] = old[:, 3:].min(axis=0) + share * np.ptp(old[:, 3:], axis=0)
    return out
