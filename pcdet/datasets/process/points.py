"""Processors that select and order points."""

from typing import TypedDict

import numpy as np

from pcdet.datasets.process.registry import PROCESSORS, ProcessContext
from pcdet.datasets.transforms import select_boxes
from pcdet.structures.boxes import box_corners
from pcdet.structures.scene import Scene

FAR = 40.0  # metres from the sensor; sample_points keeps every point beyond it where it can


def random_order(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count,) int64: numbers below ``total``, each at most once, in random order.

    As ``rng.permutation(total)[:count]``, but faster: the generator gives a seed, and a kernel draws from it.
    """
    from pcdet.datasets.kernels import draw_order

    return draw_order(total, count, rng.integers(2**64, dtype=np.uint64))


class EnabledByMode(TypedDict, total=False):
    """A switch for training and one for testing."""

    train: bool
    test: bool


class CountByMode(TypedDict, total=False):
    """A number for training and one for testing."""

    train: int
    test: int


@PROCESSORS.register(name="mask_points_and_boxes_outside_range")
class MaskPointsAndBoxesOutsideRange:
    """Drop points outside POINT_CLOUD_RANGE and, in training, boxes outside it.

    Points are tested in x and y only, borders included, as OpenPCDet does; the voxelizer drops what is too high or
    too low. A box is inside if its centre is (``use_center_to_filter``), or else if at least ``min_num_corners`` of
    its corners are, seen from above.
    """

    def __init__(
        self,
        context: ProcessContext,
        *,
        remove_outside_boxes: bool = True,
        use_center_to_filter: bool = True,
        min_num_corners: int = 1,
    ):
        self.range = context.point_cloud_range
        self.remove_boxes = remove_outside_boxes and context.training
        self.by_center = use_center_to_filter
        self.min_num_corners = min_num_corners

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        low, high = self.range[:2], self.range[3:5]
        xy = scene.points[:, :2]
        inside = (xy[:, 0] >= low[0]) & (xy[:, 0] <= high[0]) & (xy[:, 1] >= low[1]) & (xy[:, 1] <= high[1])
        scene = scene.with_(points=scene.points.compress(inside, axis=0))
        if self.remove_boxes and scene.gt_boxes is not None:
            scene = select_boxes(scene, self.boxes_inside(scene.gt_boxes))
        return scene

    def boxes_inside(self, boxes: np.ndarray) -> np.ndarray:
        """(M, 7) -> (M,) bool."""
        if self.by_center:
            return ((boxes[:, :3] >= self.range[:3]) & (boxes[:, :3] <= self.range[3:])).all(axis=1)
        corners = box_corners(boxes)[:, :, :2]  # (M, 8, 2)
        inside = ((corners >= self.range[:2]) & (corners <= self.range[3:5])).all(axis=2)
        return inside.sum(axis=1) >= self.min_num_corners


@PROCESSORS.register(name="shuffle_points")
class ShufflePoints:
    """Put the points in random order, so that a full voxel keeps a random choice of its points."""

    def __init__(self, context: ProcessContext, *, shuffle_enabled: EnabledByMode):
        self.enabled = bool(shuffle_enabled.get(context.mode, False))

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        if not self.enabled:
            return scene
        count = len(scene.points)
        return scene.with_(points=scene.points.take(random_order(count, count, rng), axis=0))


@PROCESSORS.register(name="sample_points")
class SamplePoints:
    """Give every cloud the same number of points, in random order.

    Too many: all points farther than 40 m stay and near ones are drawn without repetition; where the far ones alone
    are too many, the draw is from all points. Too few: every point stays and repeats are drawn, each point once
    before any is repeated again. An empty cloud stays empty. A NUM_POINTS of -1 changes nothing.
    """

    def __init__(self, context: ProcessContext, *, num_points: CountByMode):
        if context.mode not in num_points:
            raise ValueError(f"sample_points: NUM_POINTS has no entry '{context.mode}'")
        self.num_points = int(num_points[context.mode])

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        if self.num_points == -1 or len(scene.points) == 0:
            return scene
        return scene.with_(points=scene.points.take(self.choose(scene.points, rng), axis=0))

    def choose(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Indices into (N, 3+) ``points``: ``num_points`` of them."""
        total, wanted = len(points), self.num_points
        if wanted > total:
            whole, rest = divmod(wanted, total)
            choice = np.concatenate([np.tile(np.arange(total), whole), random_order(total, rest, rng)])
        else:
            x, y, z = points[:, 0], points[:, 1], points[:, 2]
            is_far = np.sqrt(x * x + y * y + z * z) >= FAR
            far = np.flatnonzero(is_far)
            if len(far) >= wanted:
                return random_order(total, wanted, rng)
            near = np.flatnonzero(~is_far)
            choice = np.concatenate([far, near[random_order(len(near), wanted - len(far), rng)]])
        return choice[random_order(wanted, wanted, rng)]
