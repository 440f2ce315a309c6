"""Neighbours within a radius, of equally long clouds."""

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device


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
    if radius <= 0 or num_samples < 1:
        raise ValueError(f"radius ({radius}) must be above 0 and num_samples ({num_samples}) at least 1")
    return _query(points[..., :3].detach().float(), centres[..., :3].detach().float(), float(radius), num_samples)


@library.custom_op("pcdet::ball_query", mutates_args=())
def _query(points: Tensor, centres: Tensor, radius: float, num_samples: int) -> tuple[Tensor, Tensor]:
    return backend("ball_query", points.device.type).query(points, centres, radius, num_samples)


@_query.register_fake
def _(points: Tensor, centres: Tensor, radius: float, num_samples: int) -> tuple[Tensor, Tensor]:
    count = centres.new_empty(centres.shape[:2], dtype=torch.int64)
    return count.new_empty(*count.shape, num_samples), count
