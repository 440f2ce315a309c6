"""Neighbours within a radius, of equally long clouds and of stacked clouds."""

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device, scenes_for


def ball_query(
    points: Tensor,  # (B, N, 3+)
    centres: Tensor,  # (B, S, 3+)
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    """The first G points within ``radius`` metres of each centre. -> indices (B, S, G), counts (B, S), int64.

    PointNet++, sec. 3.2. Neighbours are strictly nearer than ``radius`` (squared distances in float32) and come **in
    index order**, not by distance, as in the original; G is ``num_samples``. Where fewer are found, the first one
    fills the remaining places; where none is found, the count is 0 and the indices are 0, so mask by the count where
    that matters. An index never reaches N, except that no index is valid where N is 0. No gradient flows.

    Works under ``torch.compile``. Raises ``ValueError`` for other shapes, two devices and sizes not above 0.
    """
    require_columns("points", points, "(B, N, 3+)", 3)
    require_columns("centres", centres, "(B, S, 3+)", 3)
    require_same_device(points=points, centres=centres)
    if len(points) != len(centres):
        raise ValueError(f"points hold {len(points)} clouds but centres {len(centres)}")
    _require_sizes(radius, num_samples)
    return _query(points[..., :3].detach().float(), centres[..., :3].detach().float(), float(radius), num_samples)


def ball_query_stack(
    points: Tensor,  # (N, 3+) the scenes' points one after another
    counts: Tensor,  # (B,) int64, points of each scene
    centres: Tensor,  # (M, 3+) the scenes' centres one after another
    centre_counts: Tensor,  # (B,) int64
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    """As :func:`ball_query` for scenes of different sizes. -> indices (M, G), counts (M,), int64.

    The indices are **global**: they refer to rows of ``points``. A centre without neighbours has the count 0 and the
    index of its scene's first point, or 0 where the scene has no points: always a row of ``points`` unless N is 0.
    (OpenPCDet returns indices within the scene, and a mask of the empty balls.)

    Raises ``ValueError`` for other shapes, two devices, sizes not above 0 and, where the GPU's kernels do not run,
    for counts that do not add up.
    """
    require_columns("points", points, "(N, 3+)", 3)
    require_columns("centres", centres, "(M, 3+)", 3)
    require_same_device(points=points, centres=centres)
    if counts.shape != centre_counts.shape:
        raise ValueError(f"points hold {len(counts)} scenes but centres {len(centre_counts)}")
    _require_sizes(radius, num_samples)
    stacks = points[:, :3].detach().float(), counts, centres[:, :3].detach().float(), centre_counts
    return _query_stack(*stacks, float(radius), num_samples)


def _require_sizes(radius: float, num_samples: int) -> None:
    if radius <= 0 or num_samples < 1:
        raise ValueError(f"radius ({radius}) must be above 0 and num_samples ({num_samples}) at least 1")


@library.custom_op("pcdet::ball_query", mutates_args=())
def _query(points: Tensor, centres: Tensor, radius: float, num_samples: int) -> tuple[Tensor, Tensor]:
    return backend("ball_query", points.device.type).query(points, centres, radius, num_samples)


@_query.register_fake
def _(points: Tensor, centres: Tensor, radius: float, num_samples: int) -> tuple[Tensor, Tensor]:
    count = centres.new_empty(centres.shape[:2], dtype=torch.int64)
    return count.new_empty(*count.shape, num_samples), count


@library.custom_op("pcdet::ball_query_stack", mutates_args=())
def _query_stack(
    points: Tensor, counts: Tensor, centres: Tensor, centre_counts: Tensor, radius: float, num_samples: int
) -> tuple[Tensor, Tensor]:
    room = backend("ball_query", points.device.type)
    lengths, wanted = scenes_for(room, "points", points, counts), scenes_for(room, "centres", centres, centre_counts)
    return room.query_stack(points, lengths, centres, wanted, radius, num_samples)


@_query_stack.register_fake
def _(
    points: Tensor, counts: Tensor, centres: Tensor, centre_counts: Tensor, radius: float, num_samples: int
) -> tuple[Tensor, Tensor]:
    count = centres.new_empty(len(centres), dtype=torch.int64)
    return count.new_empty(len(centres), num_samples), count
