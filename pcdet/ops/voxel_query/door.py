"""Voxels near a place, found through their grid coordinates."""

from collections.abc import Sequence

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device


def voxel_query(
    voxel_coords: Tensor,  # (V, 4) integers: scene z y x, each at most once
    voxel_centres: Tensor,  # (V, 3+) x y z in metres
    spatial_shape: Sequence[int],  # cells along z, y, x
    batch_size: int,
    centres: Tensor,  # (M, 3+) x y z in metres
    centre_coords: Tensor,  # (M, 4) integers: scene z y x; z y x may lie outside the grid
    ranges: Sequence[int],  # cells to look to either side along z, y, x
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    """The first G voxels around each centre. -> indices (M, G) of rows of the voxels, counts (M,), int64.

    Voxel R-CNN (Deng et al. 2021, sec. 3.2). Searched are the cells at most ``ranges`` away from the centre's own,
    in ascending order of z, then y, then x; a voxel counts if its centre is at most ``radius`` metres away
    (**inclusive**, unlike :func:`~pcdet.ops.ball_query.ball_query`; squared distances in float32). Where fewer than
    G (``num_samples``) are found, the first one fills the remaining places; where none is found, the count and the
    indices are 0. No gradient flows.

    Works under ``torch.compile``. Raises ``ValueError`` for other shapes, two devices, sizes not above 0, negative
    ranges and, on the CPU, for voxels outside the grid and scenes that are not in [0, batch_size). On a GPU a place in
    no scene finds nothing, and a voxel outside the grid is another one's cell or torch's error.
    """
    require_columns("voxel_coords", voxel_coords, "(V, 4)", 4)
    require_columns("voxel_centres", voxel_centres, "(V, 3+)", 3)
    require_columns("centres", centres, "(M, 3+)", 3)
    require_columns("centre_coords", centre_coords, "(M, 4)", 4)
    require_same_device(
        voxel_coords=voxel_coords, voxel_centres=voxel_centres, centres=centres, centre_coords=centre_coords
    )
    if len(voxel_coords) != len(voxel_centres) or len(centres) != len(centre_coords):
        raise ValueError(
            f"{len(voxel_coords)} voxel_coords need as many voxel_centres, not {len(voxel_centres)}, and "
            f"{len(centres)} centres as many centre_coords, not {len(centre_coords)}"
        )
    if radius <= 0 or num_samples < 1 or min(ranges) < 0:
        raise ValueError(
            f"radius ({radius}) must be above 0, num_samples ({num_samples}) at least 1, ranges {ranges} not negative"
        )
    voxels = voxel_coords.long(), voxel_centres[:, :3].detach().float(), list(spatial_shape), batch_size
    queries = centres[:, :3].detach().float(), centre_coords.long(), list(ranges), float(radius), num_samples
    return _query(*voxels, *queries)


@library.custom_op("pcdet::voxel_query", mutates_args=())
def _query(
    voxel_coords: Tensor,
    voxel_centres: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    centres: Tensor,
    centre_coords: Tensor,
    ranges: Sequence[int],
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    grid = [batch_size, *spatial_shape]
    if centres.device.type == "cpu":  # elsewhere reading the bounds would make the host wait
        _require_inside("voxel_coords", voxel_coords, grid)
        _require_inside("scenes of centre_coords", centre_coords[:, :1], [batch_size])
    return backend("voxel_query", centres.device.type).query(
        voxel_coords, voxel_centres, grid, centres, centre_coords, ranges, radius, num_samples
    )


@_query.register_fake
def _(
    voxel_coords: Tensor,
    voxel_centres: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    centres: Tensor,
    centre_coords: Tensor,
    ranges: Sequence[int],
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    count = centres.new_empty(len(centres), dtype=torch.int64)
    return count.new_empty(len(centres), num_samples), count


def _require_inside(name: str, coords: Tensor, shape: list[int]) -> None:
    if coords.numel() == 0:
        return
    bounds = torch.stack([torch.stack(column.aminmax()) for column in coords.unbind(dim=1)]).tolist()
    if any(low < 0 or high >= size for (low, high), size in zip(bounds, shape, strict=True)):
        raise ValueError(f"{name} range over {bounds}, but must lie below {shape} and not be negative")
