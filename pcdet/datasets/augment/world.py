"""Augmentors that move the whole scene; points and boxes move together."""

from collections.abc import Sequence

import numpy as np

from pcdet.datasets.augment.registry import AUGMENTS, AugmentContext
from pcdet.datasets.transforms import number_pair
from pcdet.structures.boxes import rotate_z, wrap_angle
from pcdet.structures.scene import Scene


def flip(scene: Scene, axis: str) -> Scene:
    """Mirror the scene: along ``x`` left and right change places (y -> -y), along ``y`` front and back."""
    points, boxes = scene.points.copy(), scene.gt_boxes.copy()
    column = 1 if axis == "x" else 0
    points[:, column] *= -1
    boxes[:, column] *= -1
    boxes[:, 6] = wrap_angle(-boxes[:, 6] if axis == "x" else np.pi - boxes[:, 6])
    return scene.with_(points=points, gt_boxes=boxes)


def rotate(scene: Scene, angle: float) -> Scene:
    """Turn the scene by ``angle`` radians counter-clockwise about the sensor's z axis."""
    boxes = rotate_z(scene.gt_boxes, angle)
    boxes[:, 6] = wrap_angle(boxes[:, 6] + angle)
    return scene.with_(points=rotate_z(scene.points, angle), gt_boxes=boxes)


def scale(scene: Scene, factor: float) -> Scene:
    """Scale all coordinates and sizes about the sensor."""
    points, boxes = scene.points.copy(), scene.gt_boxes.copy()
    points[:, :3] *= factor
    boxes[:, :6] *= factor
    return scene.with_(points=points, gt_boxes=boxes)


def translate(scene: Scene, offset: np.ndarray) -> Scene:
    """Move everything by ``offset`` (3,), metres."""
    points, boxes = scene.points.copy(), scene.gt_boxes.copy()
    points[:, :3] += offset
    boxes[:, :3] += offset
    return scene.with_(points=points, gt_boxes=boxes)


@AUGMENTS.register(name="random_world_flip")
class RandomWorldFlip:
    """Mirror the scene along each listed axis with probability one half."""

    def __init__(self, context: AugmentContext, *, along_axis_list: Sequence[str]):
        for axis in along_axis_list:
            if axis not in ("x", "y"):
                raise ValueError(f"random_world_flip: ALONG_AXIS_LIST may name x and y, not '{axis}'")
        self.axes = tuple(along_axis_list)

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        for axis in self.axes:
            if rng.random() < 0.5:
                scene = flip(scene, axis)
        return scene


@AUGMENTS.register(name="random_world_rotation")
class RandomWorldRotation:
    """Turn the scene about the vertical axis by an angle drawn evenly from WORLD_ROT_ANGLE (radians)."""

    def __init__(self, context: AugmentContext, *, world_rot_angle: float | Sequence[float]):
        self.angles = number_pair(world_rot_angle, "random_world_rotation: WORLD_ROT_ANGLE")

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        return rotate(scene, rng.uniform(*self.angles))


@AUGMENTS.register(name="random_world_scaling")
class RandomWorldScaling:
    """Scale the scene by a factor drawn evenly from WORLD_SCALE_RANGE."""

    def __init__(self, context: AugmentContext, *, world_scale_range: Sequence[float]):
        self.factors = number_pair(world_scale_range, "random_world_scaling: WORLD_SCALE_RANGE")
        if self.factors[0] <= 0:
            raise ValueError(f"random_world_scaling: WORLD_SCALE_RANGE should be positive, got {self.factors}")

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        return scale(scene, rng.uniform(*self.factors))


@AUGMENTS.register(name="random_world_translation")
class RandomWorldTranslation:
    """Move the scene by normally distributed offsets with the standard deviations of NOISE_TRANSLATE_STD (metres)."""

    def __init__(self, context: AugmentContext, *, noise_translate_std: Sequence[float]):
        self.std = np.array(noise_translate_std, dtype=np.float64)
        if self.std.shape != (3,) or (self.std < 0).any():
            raise ValueError(
                f"random_world_translation: NOISE_TRANSLATE_STD is three deviations, got {list(noise_translate_std)}"
            )

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        return translate(scene, rng.normal(0.0, self.std))
