"""Augmentors that move the whole scene; points and boxes move together."""

import abc
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pcdet.datasets.augment.registry import AUGMENTS, AugmentContext
from pcdet.datasets.transforms import Transform, number_pair
from pcdet.structures.boxes import rotate_z, wrap_angle
from pcdet.structures.scene import Scene

# The kinds of steps of pcdet.datasets.kernels, which is imported only where it is called, because it imports numba.
MIRROR_Y, MIRROR_X, TURN, SCALE, SHIFT = 0.0, 1.0, 2.0, 3.0, 4.0


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


class Step(NamedTuple):
    """One movement in two forms that agree to the bit."""

    plain: Callable[[Scene], Scene]
    row: tuple[float, float, float, float]  # of the table that pcdet.datasets.kernels.move_points takes


def flip_step(axis: str) -> Step:
    """:func:`flip` as a step."""
    return Step(functools.partial(flip, axis=axis), (MIRROR_Y if axis == "x" else MIRROR_X, 0.0, 0.0, 0.0))


def rotate_step(angle: float) -> Step:
    """:func:`rotate` as a step."""
    return Step(functools.partial(rotate, angle=angle), (TURN, float(np.cos(angle)), float(np.sin(angle)), 0.0))


def scale_step(factor: float) -> Step:
    """:func:`scale` as a step."""
    return Step(functools.partial(scale, factor=factor), (SCALE, factor, 0.0, 0.0))


def translate_step(offset: np.ndarray) -> Step:
    """:func:`translate` as a step."""
    return Step(functools.partial(translate, offset=offset), (SHIFT, *offset.tolist()))


def moved(scene: Scene, steps: Sequence[Step]) -> Scene:
    """The scene after all steps, in one pass over its points."""
    from pcdet.datasets.kernels import move_points

    if not steps:
        return scene
    boxes = functools.reduce(lambda bare, step: step.plain(bare), steps, scene.with_(points=scene.points[:0]))
    return boxes.with_(points=move_points(scene.points, np.array([step.row for step in steps])))


class WorldMove(abc.ABC):
    """An augmentor that moves the whole scene by steps it draws."""

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator) -> list[Step]:
        """The steps, in their order."""

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        return moved(scene, self.draw(rng))


def augmented(scene: Scene, augmentors: Sequence[Transform], rng: np.random.Generator) -> Scene:
    """The scene after all augmentors. Neighbouring moves draw as they would alone, but share a pass over the points."""
    for are_moves, group in itertools.groupby(augmentors, lambda augment: isinstance(augment, WorldMove)):
        if are_moves:
            scene = moved(scene, [step for move in group for step in move.draw(rng)])
        else:
            scene = functools.reduce(lambda before, augment: augment(before, rng), group, scene)
    return scene


@AUGMENTS.register(name="random_world_flip")
class RandomWorldFlip(WorldMove):
    """Mirror the scene along each listed axis with probability one half."""

    def __init__(self, context: AugmentContext, *, along_axis_list: Sequence[str]):
        for axis in along_axis_list:
            if axis not in ("x", "y"):
                raise ValueError(f"random_world_flip: ALONG_AXIS_LIST may name x and y, not '{axis}'")
        self.axes = tuple(along_axis_list)

    def draw(self, rng: np.random.Generator) -> list[Step]:
        """A flip for each axis whose coin says so."""
        return [flip_step(axis) for axis in self.axes if rng.random() < 0.5]


@AUGMENTS.register(name="random_world_rotation")
class RandomWorldRotation(WorldMove):
    """Turn the scene about the vertical axis by an angle drawn evenly from WORLD_ROT_ANGLE (radians)."""

    def __init__(self, context: AugmentContext, *, world_rot_angle: float | Sequence[float]):
        self.angles = number_pair(world_rot_angle, "random_world_rotation: WORLD_ROT_ANGLE")

    def draw(self, rng: np.random.Generator) -> list[Step]:
        """One turn."""
        return [rotate_step(rng.uniform(*self.angles))]


@AUGMENTS.register(name="random_world_scaling")
class RandomWorldScaling(WorldMove):
    """Scale the scene by a factor drawn evenly from WORLD_SCALE_RANGE."""

    def __init__(self, context: AugmentContext, *, world_scale_range: Sequence[float]):
        self.factors = number_pair(world_scale_range, "random_world_scaling: WORLD_SCALE_RANGE")
        if self.factors[0] <= 0:
            raise ValueError(f"random_world_scaling: WORLD_SCALE_RANGE should be positive, got {self.factors}")

    def draw(self, rng: np.random.Generator) -> list[Step]:
        """One factor."""
        return [scale_step(rng.uniform(*self.factors))]


@AUGMENTS.register(name="random_world_translation")
class RandomWorldTranslation(WorldMove):
    """Move the scene by normally distributed offsets with the standard deviations of NOISE_TRANSLATE_STD (metres)."""

    def __init__(self, context: AugmentContext, *, noise_translate_std: Sequence[float]):
        self.std = np.array(noise_translate_std, dtype=np.float64)
        if self.std.shape != (3,) or (self.std < 0).any():
            raise ValueError(
                f"random_world_translation: NOISE_TRANSLATE_STD is three deviations, got {list(noise_translate_std)}"
            )

    def draw(self, rng: np.random.Generator) -> list[Step]:
        """One offset."""
        return [translate_step(rng.normal(0.0, self.std))]
