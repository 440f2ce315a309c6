"""Augmentors that drop the points of one side: of the scene, or of each object."""

from collections.abc import Sequence

import numpy as np

from pcdet.datasets.augment.registry import AUGMENTS, AugmentContext
from pcdet.datasets.transforms import number_pair, select_boxes
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.structures.boxes import rotate_z
from pcdet.structures.scene import Scene

# Each side as a column of x y z and a sign: the coordinate, times the sign, grows towards the side.
SIDES = {"top": (2, 1.0), "bottom": (2, -1.0), "left": (1, 1.0), "right": (1, -1.0)}


def checked_sides(direction: Sequence[str], name: str) -> tuple[str, ...]:
    """Raises ``ValueError`` for a DIRECTION that is not a list of known sides."""
    sides = (direction,) if isinstance(direction, str) else tuple(direction)
    unknown = [side for side in sides if side not in SIDES]
    if unknown:
        raise ValueError(f"{name}: DIRECTION may name {', '.join(SIDES)}, not {unknown}")
    return sides


def checked_shares(intensity_range: Sequence[float], name: str) -> tuple[float, float]:
    """Raises ``ValueError`` unless INTENSITY_RANGE is within [0, 1]."""
    low, high = number_pair(intensity_range, f"{name}: INTENSITY_RANGE")
    if low < 0 or high > 1:
        raise ValueError(f"{name}: INTENSITY_RANGE is a share of the extent, from 0 to 1, got {list(intensity_range)}")
    return low, high


@AUGMENTS.register(name="random_world_frustum_dropout")
class RandomWorldFrustumDropout:
    """Drop a slab at each listed side of the scene, with the points in it and the boxes centred in it.

    The slab's thickness is a share, drawn evenly from INTENSITY_RANGE, of the cloud's extent in that direction.
    """

    def __init__(self, context: AugmentContext, *, intensity_range: Sequence[float], direction: Sequence[str]):
        self.shares = checked_shares(intensity_range, "random_world_frustum_dropout")
        self.sides = checked_sides(direction, "random_world_frustum_dropout")

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        for side in self.sides:
            share = rng.uniform(*self.shares)
            if len(scene.points):
                scene = self.drop(scene, side, share)
        return scene

    @staticmethod
    def drop(scene: Scene, side: str, share: float) -> Scene:
        """The scene without the outer ``share`` of its points' extent towards ``side``."""
        if share == 0:
            return scene
        column, sign = SIDES[side]
        along = sign * scene.points[:, column]  # (N,)
        limit = along.max() - share * (along.max() - along.min())
        scene = scene.with_(points=scene.points[along < limit])
        return select_boxes(scene, sign * scene.gt_boxes[:, column] < limit)


@AUGMENTS.register(name="random_local_frustum_dropout")
class RandomLocalFrustumDropout:
    """Drop the points in a slab at each listed side of every box; the boxes stay.

    The slab's thickness is a share, drawn evenly from INTENSITY_RANGE, of the box's extent. ``left`` and ``right`` are
    the box's own sides (in OpenPCDet they are the scene's, which for a turned box is not a side).
    """

    def __init__(self, context: AugmentContext, *, intensity_range: Sequence[float], direction: Sequence[str]):
        self.shares = checked_shares(intensity_range, "random_local_frustum_dropout")
        self.sides = checked_sides(direction, "random_local_frustum_dropout")

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        inside = points_in_boxes_mask(scene.points, scene.gt_boxes)  # (M, N)
        keep = np.ones(len(scene.points), dtype=bool)
        for mask, box in zip(inside, scene.gt_boxes, strict=True):
            own = np.flatnonzero(mask)
            local = rotate_z(scene.points[own, :3] - box[:3], -box[6])  # (n, 3) in the box's frame
            for side in self.sides:
                column, sign = SIDES[side]
                share = rng.uniform(*self.shares)
                if share > 0:
                    keep[own[sign * local[:, column] >= (0.5 - share) * box[3 + column]]] = False
        return scene.with_(points=scene.points[keep])
