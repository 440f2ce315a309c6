"""Processors that lay the voxel grid."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from pcdet.datasets.process.registry import PROCESSORS, ProcessContext
from pcdet.ops.voxelize import voxelize
from pcdet.structures.scene import Scene


class VoxelLimitByMode(TypedDict, total=False):
    """The most voxels of a scene, for training and for testing."""

    train: int
    test: int


def grid_of(point_cloud_range: np.ndarray, voxel_size: Sequence[float]) -> tuple[int, int, int]:
    """Cells along x, y and z.

    Raises ``ValueError``, with the nearest ranges that would do, where a voxel does not divide the range.
    """
    if len(voxel_size) != 3 or min(voxel_size) <= 0:
        raise ValueError(f"VOXEL_SIZE should be three positive lengths in metres, got {list(voxel_size)}")
    cells = []
    for axis, size in enumerate(voxel_size):
        low, high = float(point_cloud_range[axis]), float(point_cloud_range[axis + 3])
        exact = (high - low) / size
        count = round(exact)
        if count < 1 or abs(exact - count) > 1e-3:
            near = sorted({max(1, int(np.floor(exact))), max(1, int(np.ceil(exact)))})
            ends = " or ".join(f"{low + n * size:g}" for n in near)
            raise ValueError(
                f"POINT_CLOUD_RANGE runs from {low:g} to {high:g} along {'xyz'[axis]}, which is {exact:.4g} voxels of "
                f"VOXEL_SIZE {size:g}. A whole number is needed: end it at {ends}"
            )
        cells.append(count)
    return tuple(cells)


@PROCESSORS.register(name="calculate_grid_size")
class CalculateGridSize:
    """Only lay the grid: the model assigns points to cells itself.

    ``voxel_size`` (metres) and ``grid_size`` (cells along x, y, z) become part of the data set's ``info``.
    """

    max_points_per_voxel: int | None = None
    device_voxels: tuple[int, int] | None = None

    def __init__(self, context: ProcessContext, *, voxel_size: Sequence[float]):
        self.voxel_size = tuple(float(v) for v in voxel_size)
        self.grid_size = grid_of(context.point_cloud_range, self.voxel_size)

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        return scene


@PROCESSORS.register(name="transform_points_to_voxels_placeholder")
class TransformPointsToVoxelsPlaceholder(CalculateGridSize):
    """As ``calculate_grid_size``: the dynamic voxel encoders, which voxelize on the device, are configured so.

    They know no limits, so the keys that set them have no effect.
    """

    ignored_keys = ("MAX_POINTS_PER_VOXEL", "MAX_NUMBER_OF_VOXELS")

    def __init__(self, context: ProcessContext, *, voxel_size: Sequence[float]):
        super().__init__(context, voxel_size=voxel_size)


@PROCESSORS.register(name="transform_points_to_voxels")
class TransformPointsToVoxels(CalculateGridSize):
    """Gather points into voxels (VoxelNet, sec. 2.1.1): the first ones of each, in point order.

    Adds ``voxels`` (V, P, C), ``voxel_coords`` (V, 3) as z y x, and ``voxel_num_points`` (V,) to the scene's extras.
    ``device`` leaves this to the model, which does the same on its device: a batch then carries the points alone.
    """

    def __init__(
        self,
        context: ProcessContext,
        *,
        voxel_size: Sequence[float],
        max_points_per_voxel: int,
        max_number_of_voxels: VoxelLimitByMode,
        device: bool = False,
    ):
        super().__init__(context, voxel_size=voxel_size)
        if context.mode not in max_number_of_voxels:
            raise ValueError(f"transform_points_to_voxels: MAX_NUMBER_OF_VOXELS has no entry '{context.mode}'")
        self.range = tuple(float(v) for v in context.point_cloud_range)
        self.max_points_per_voxel = int(max_points_per_voxel)
        self.max_voxels = int(max_number_of_voxels[context.mode])
        if device:
            limits = (int(max_number_of_voxels.get(mode, self.max_voxels)) for mode in ("train", "test"))
            self.device_voxels = tuple(limits)

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        if self.device_voxels is not None:
            return scene
        voxels, coords, counts = voxelize(
            scene.points, self.range, self.voxel_size, self.grid_size, self.max_points_per_voxel, self.max_voxels
        )
        return scene.with_(extras={"voxels": voxels, "voxel_coords": coords, "voxel_num_points": counts})
