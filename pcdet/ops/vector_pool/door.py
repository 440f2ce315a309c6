"""Vector pooling: the support points near each centre, seen from a small grid around it."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device, scenes_for
from pcdet.ops.scatter import pool_rows

MAX_NEIGHBOURS = 1000  # the original holds no more of them in its registers


class VoxelPool(NamedTuple):
    """What :func:`voxel_pool` finds in the T cells around each of M centres."""

    features: Tensor  # (M, T, C), 0 in an empty cell
    offsets: Tensor  # (M, T, 3) metres from the centre, pooled as the features are; no gradient
    counts: Tensor  # (M, T) int64 points that were pooled


def local_three_nn(
    support: Tensor,  # (N, 3) scenes one after the other
    counts: Tensor,  # (B,) int64 support points of each scene
    centres: Tensor,  # (M, 3)
    grid_centres: Tensor,  # (M, T, 3)
    centre_counts: Tensor,  # (B,) int64 centres of each scene
    max_distance: float,
    num_samples: int = -1,
    neighbour_type: int = 0,
) -> tuple[Tensor, Tensor]:
    """The three support points nearest to each grid centre, among the neighbours of its centre.

    PV-RCNN++, sec. 4.2. -> distances (M, T, 3) in metres, ascending, float32, and rows of ``support`` (M, T, 3).

    Neighbours lie within ``max_distance`` of the centre (inclusive): along every axis if ``neighbour_type`` is 0, in
    space if it is 1. Only the first ``num_samples`` in index order are looked at, and never more than 1000, as in the
    original; -1 sets no limit of its own. Of equally near points the first is taken. With one or two neighbours the
    nearest stands in for the missing ones; without any, the distances are infinite and the rows are -1.

    OpenPCDet calls this with MAX_NEIGHBOR_DISTANCE times the multiplier of the neighbour distance. No gradient flows.
    Works under ``torch.compile``. Raises ``ValueError`` for other shapes, two devices, a distance not above 0 and,
    where the GPU's kernels do not run, for counts that do not add up.
    """
    require_columns("grid_centres", grid_centres, "(M, T, 3)", 3)
    if len(grid_centres) != len(centres):
        raise ValueError(f"there are {len(centres)} centres but grids around {len(grid_centres)}")
    require_same_device(support=support, grid_centres=grid_centres)
    scenes = _checked(support, counts, centres, centre_counts, max_distance, neighbour_type)
    cap = MAX_NEIGHBOURS if num_samples <= 0 else min(num_samples, MAX_NEIGHBOURS)
    grid = grid_centres.detach().float()
    squared, rows = _three_nn(*scenes, grid, float(max_distance), cap, neighbour_type == 1)
    return squared.sqrt_(), rows


def voxel_pool(
    support: Tensor,  # (N, 3) scenes one after the other
    counts: Tensor,  # (B,) int64
    features: Tensor,  # (N, C)
    centres: Tensor,  # (M, 3)
    centre_counts: Tensor,  # (B,) int64
    num_voxels: Sequence[int],
    max_distance: float,
    num_samples: int = -1,
    neighbour_type: int = 0,
    method: Literal["avg", "first"] = "avg",
) -> VoxelPool:
    """Pool the neighbours of each centre by the cells of a grid that spans ``max_distance`` to each side of it.

    PV-RCNN++, sec. 4.2. ``num_voxels`` are the cells along x, y, z, T in all, x slowest. Neighbours as in
    :func:`local_three_nn`, but without the limit of 1000, and ``max_distance`` is OpenPCDet's MAX_NEIGHBOR_DISTANCE
    itself. A point exactly on the upper border falls into the next cell of the flat order, as in the original.

    ``"avg"`` (voxel_avg_pool) takes the mean of the first ``num_samples`` neighbours, by cell; ``"first"``
    (voxel_random_choice, which does not draw either) the first neighbour of each cell, and only those of the
    ``num_samples`` cells that are filled first. Differentiable in ``features``; fold channels before the call.

    Errors as in :func:`local_three_nn`, and for fewer than one cell.
    """
    require_columns("features", features, "(N, C)", 0)
    if len(features) != len(support):
        raise ValueError(f"there are {len(support)} support points but {len(features)} rows of features")
    if len(num_voxels) != 3 or min(num_voxels) < 1:
        raise ValueError(f"num_voxels ({num_voxels}) must be 3 numbers above 0")
    if method not in ("avg", "first"):
        raise ValueError(f"method must be 'avg' or 'first', not {method!r}")
    require_same_device(support=support, features=features)
    scenes = _checked(support, counts, centres, centre_counts, max_distance, neighbour_type)
    cap = num_samples if num_samples > 0 else -1
    options = (list(num_voxels), float(max_distance), cap, neighbour_type == 1, method == "first")
    rows, start = _members(*scenes, *options)
    shape = (len(centres), num_voxels[0] * num_voxels[1] * num_voxels[2])
    held = start.diff()  # (M * T,)
    cell = torch.arange(len(held), device=held.device).repeat_interleave(held, output_size=len(rows))
    offset = scenes[0][rows] - scenes[2][cell // shape[1]]  # (K, 3)
    offsets = pool_rows(offset, torch.arange(len(rows), device=rows.device), start, "mean")
    pooled = pool_rows(features, rows, start, "mean")
    return VoxelPool(pooled.view(*shape, features.shape[1]), offsets.view(*shape, 3), held.view(shape))


def _checked(
    support: Tensor, counts: Tensor, centres: Tensor, centre_counts: Tensor, max_distance: float, neighbour_type: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    require_columns("support", support, "(N, 3)", 3)
    require_columns("centres", centres, "(M, 3)", 3)
    require_same_device(support=support, counts=counts, centres=centres, centre_counts=centre_counts)
    if counts.shape != centre_counts.shape:
        raise ValueError(f"counts {tuple(counts.shape)} and centre_counts {tuple(centre_counts.shape)} must be (B,)")
    if max_distance <= 0 or neighbour_type not in (0, 1):
        raise ValueError(f"max_distance ({max_distance}) must be above 0, neighbour_type ({neighbour_type}) 0 or 1")
    if support.device.type == "cpu" and not torch.compiler.is_compiling():
        for name, number, rows in (("counts", counts, support), ("centre_counts", centre_counts, centres)):
            if int(number.sum()) != len(rows):
                raise ValueError(f"{name} add up to {int(number.sum())}, but there are {len(rows)} rows")
    return support[:, :3].detach().float(), counts.long(), centres[:, :3].detach().float(), centre_counts.long()


@library.custom_op("pcdet::vector_pool_three_nn", mutates_args=())
def _three_nn(
    support: Tensor,
    counts: Tensor,
    centres: Tensor,
    centre_counts: Tensor,
    grid_centres: Tensor,
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    room = backend("vector_pool", support.device.type)
    lengths = scenes_for(room, "support", support, counts), scenes_for(room, "centres", centres, centre_counts)
    return room.three_nn(support, lengths[0], centres, lengths[1], grid_centres, radius, cap, ball)


@_three_nn.register_fake
def _(support, counts, centres, centre_counts, grid_centres, radius, cap, ball):
    return torch.empty_like(grid_centres), torch.empty_like(grid_centres, dtype=torch.int64)


@library.custom_op("pcdet::vector_pool_members", mutates_args=())
def _members(
    support: Tensor,
    counts: Tensor,
    centres: Tensor,
    centre_counts: Tensor,
    num_voxels: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
    first: bool,
) -> tuple[Tensor, Tensor]:
    room = backend("vector_pool", support.device.type)
    members = room.first_members if first else room.all_members
    lengths = scenes_for(room, "support", support, counts), scenes_for(room, "centres", centres, centre_counts)
    return members(support, lengths[0], centres, lengths[1], num_voxels, radius, cap, ball)


@_members.register_fake
def _(support, counts, centres, centre_counts, num_voxels, radius, cap, ball, first):
    cells = centres.shape[0] * num_voxels[0] * num_voxels[1] * num_voxels[2]
    return counts.new_empty(library.get_ctx().new_dynamic_size()), counts.new_empty(cells + 1)
