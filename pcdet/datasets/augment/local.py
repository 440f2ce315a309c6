"""Augmentors that move each object, its box and the points inside it, by itself.

A point in two boxes moves with both, one after the other.
"""

import abc
from collections.abc import Sequence

import numpy as np

from pcdet.datasets.augment.registry import AUGMENTS, AugmentContext
from pcdet.datasets.transforms import number_pair
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.structures.boxes import rotate_z, wrap_angle
from pcdet.structures.scene import Scene


class LocalAugment(abc.ABC):
    """Calls ``change(points, box, rng)`` for every object of a scene, with its points (n, C) and its box (7,).

    What is changed in place are copies.
    """

    @abc.abstractmethod
    def change(self, points: np.ndarray, box: np.ndarray, rng: np.random.Generator) -> None:
        """Change one object's points (n, C) and box (7,) in place."""

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        points, boxes = scene.points.copy(), scene.gt_boxes.copy()
        inside = points_in_boxes_mask(scene.points, scene.gt_boxes)  # (M, N)
        for mask, box in zip(inside, boxes, strict=True):
            own = points[mask]
            self.change(own, box, rng)
            points[mask] = own
        return scene.with_(points=points, gt_boxes=boxes)


@AUGMENTS.register(name="random_local_rotation")
class RandomLocalRotation(LocalAugment):
    """Turn each object about its own vertical axis by an angle drawn evenly from LOCAL_ROT_ANGLE (radians)."""

    def __init__(self, context: AugmentContext, *, local_rot_angle: float | Sequence[float]):
        self.angles = number_pair(local_rot_angle, "random_local_rotation: LOCAL_ROT_ANGLE")

    def change(self, points: np.ndarray, box: np.ndarray, rng: np.random.Generator) -> None:
        """Turn about the box's centre."""
        angle = rng.uniform(*self.angles)
        points[:, :3] = rotate_z(points[:, :3] - box[:3], angle) + box[:3]
        box[6] = wrap_angle(box[6] + angle)


@AUGMENTS.register(name="random_local_scaling")
class RandomLocalScaling(LocalAugment):
    """Scale each object about its centre by a factor drawn evenly from LOCAL_SCALE_RANGE."""

    def __init__(self, context: AugmentContext, *, local_scale_range: Sequence[float]):
        self.factors = number_pair(local_scale_range, "random_local_scaling: LOCAL_SCALE_RANGE")
        if self.factors[0] <= 0:
            raise ValueError(f"random_local_scaling: LOCAL_SCALE_RANGE should be positive, got {self.factors}")

    def change(self, points: np.ndarray, box: np.ndarray, rng: np.random.Generator) -> None:
        """Scale about the box's centre."""
        factor = rng.uniform(*self.factors)
        points[:, :3] = (points[:, :3] - box[:3]) * factor + box[:3]
        box[3:6] *= factor


@AUGMENTS.register(name="random_local_translation")
class RandomLocalTranslation(LocalAugment):
    """Move each object along every listed axis by an offset drawn evenly from LOCAL_TRANSLATION_RANGE (metres)."""

    def __init__(
        self,
        context: AugmentContext,
        *,
        local_translation_range: float | Sequence[float],
        along_axis_list: Sequence[str],
    ):
        self.offsets = number_pair(local_translation_range, "random_local_translation: LOCAL_TRANSLATION_RANGE")
        unknown = set(along_axis_list) - set("xyz")
        if unknown:
            raise ValueError(f"random_local_translation: ALONG_AXIS_LIST may name x, y and z, not {sorted(unknown)}")
        self.columns = ["xyz".index(axis) for axis in along_axis_list]

    def change(self, points: np.ndarray, box: np.ndarray, rng: np.random.Generator) -> None:
        """Move along each axis."""
        for column in self.columns:
            offset = rng.uniform(*self.offsets)
            points[:, column] += offset
            box[column] += offset
