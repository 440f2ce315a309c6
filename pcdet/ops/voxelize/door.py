"""Points into voxels, for tensors on any device and for NumPy arrays."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, tensor_of

ArrayT = TypeVar("ArrayT", np.ndarray, Tensor)


class Voxels(NamedTuple):
    """The voxels that hold points. All fields share the first dimension, V."""

    voxels: Tensor | np.ndarray  # (V, P, C) float32, zero-padded points
    coords: Tensor | np.ndarray  # (V, 3) int32; z, y, x
    num_points: Tensor | np.ndarray  # (V,) int32, 1 to P


def voxelize(
    points: ArrayT,  # (N, C), C >= 3
    point_cloud_range: Sequence[float],
    voxel_size: Sequence[float],
    grid_size: Sequence[int],
    max_points_per_voxel: int,
    max_voxels: int,
) -> Voxels:
    """Collect points by the cell of a regular grid (VoxelNet, sec. 2.1.1-2.1.2), without drawing at random.

    ``point_cloud_range`` is x_min, y_min, z_min, x_max, y_max, z_max in metres, of which the minima are read;
    ``voxel_size`` and ``grid_size`` are given along x, y, z. A point's cell is ``floor((p - min) / size)`` in
    float32. Voxels come in the order of their first points and keep their first P points, as spconv's
    ``Point2VoxelCPU3d`` does; once there are ``max_voxels``, points in further cells are dropped but the voxels that
    exist still fill up. Points outside the grid, or with a NaN or an infinity in any column, are dropped.
    The result holds arrays for an array and tensors for a tensor. No gradient flows.

    Raises ``ValueError`` for other shapes and sizes that are not above 0.
    """
    require_columns("points", points, "(N, 3+)", 3)
    _require_grid(point_cloud_range, voxel_size, grid_size)
    if max_points_per_voxel < 1 or max_voxels < 1:
        raise ValueError(
            f"max_points_per_voxel ({max_points_per_voxel}) and max_voxels ({max_voxels}) must be at least 1"
        )
    grid = (point_cloud_range[:3], voxel_size, grid_size, max_points_per_voxel, max_voxels)
    if isinstance(points, np.ndarray):
        found = backend("voxelize", "cpu").voxelize(tensor_of(points, np.float32), *grid)
        return Voxels(*(part.numpy() for part in found))
    return Voxels(*_voxelize(points.detach().float(), *(list(part) for part in grid[:3]), *grid[3:]))


def _require_grid(point_cloud_range: Sequence[float], voxel_size: Sequence[float], grid_size: Sequence[int]) -> None:
    for name, value, length in (
        ("point_cloud_range", point_cloud_range, 6),
        ("voxel_size", voxel_size, 3),
        ("grid_size", grid_size, 3),
    ):
        if len(value) != length:
            raise ValueError(f"{name} must have {length} numbers, not {len(value)}")
    if min(voxel_size) <= 0 or min(grid_size) <= 0:
        raise ValueError(f"voxel_size {list(voxel_size)} and grid_size {list(grid_size)} must be above 0")


@library.custom_op("pcdet::voxelize", mutates_args=())
def _voxelize(
    points: Tensor,
    minimum: Sequence[float],
    voxel_size: Sequence[float],
    grid_size: Sequence[int],
    max_points: int,
    max_voxels: int,
) -> tuple[Tensor, Tensor, Tensor]:
    implementation = backend("voxelize", points.device.type)
    return implementation.voxelize(points, minimum, voxel_size, grid_size, max_points, max_voxels)


@_voxelize.register_fake
def _(points, minimum, voxel_size, grid_size, max_points, max_voxels):
    count = library.get_ctx().new_dynamic_size()
    coords = points.new_empty(count, 3, dtype=torch.int32)
    return points.new_empty(count, max_points, points.shape[1]), coords, coords.new_empty(count)
