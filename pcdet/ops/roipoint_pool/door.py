"""The first points inside each box, with their features."""

from collections.abc import Sequence

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device
from pcdet.ops.grouping import group_points


def roipoint_pool3d(
    points: Tensor,  # (B, N, 3)
    features: Tensor,  # (B, N, C)
    boxes: Tensor,  # (B, M, 7+)
    extra_width: float | Sequence[float],
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    """The first S points in each box: coordinates, then features (PointRCNN, sec. 3.3). -> (B, M, S, 3 + C), (B, M).

    ``extra_width`` metres are added to a box's dx, dy, dz, so half of them to each side. A point on a face is inside,
    with a margin of 1e-5 m in x and y. Points come in index order; S is ``num_samples``, and where a box holds fewer,
    they are repeated from the first on. A box without a point has rows of zeros, and True in the second result.

    Differentiable in ``points`` and ``features`` (each place gives its gradient to the point that filled it); the
    original has no gradient, and PointRCNN calls it without one: use ``torch.no_grad()`` for the same.

    Raises ``ValueError`` for other shapes, two devices and fewer than one sample.
    """
    require_columns("features", features, "(B, N, C)", 0)
    require_same_device(points=points, features=features)
    if features.shape[:2] != points.shape[:2]:
        raise ValueError(f"points {tuple(points.shape)} and features {tuple(features.shape)} must agree in B and N")
    index, empty = roipoint_query(points, boxes, extra_width, num_samples)
    rows = torch.cat([points, features], dim=2)  # (B, N, 3 + C)
    rows = torch.cat([rows, rows.new_zeros(len(rows), 1, rows.shape[2])], dim=1)  # row N fills empty boxes
    return group_points(rows, index), empty


def roipoint_query(
    points: Tensor,  # (B, N, 3)
    boxes: Tensor,  # (B, M, 7+)
    extra_width: float | Sequence[float],
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    """Which points :func:`roipoint_pool3d` takes: their indices, N in an empty box. -> (B, M, S) int64, (B, M) bool."""
    require_columns("points", points, "(B, N, 3)", 3)
    require_columns("boxes", boxes, "(B, M, 7+)", 7)
    require_same_device(points=points, boxes=boxes)
    if points.shape[2] != 3 or len(boxes) != len(points):
        raise ValueError(
            f"points {tuple(points.shape)} and boxes {tuple(boxes.shape)} must be (B, N, 3) and (B, M, 7+)"
        )
    width = [float(extra_width)] * 3 if isinstance(extra_width, int | float) else [float(w) for w in extra_width]
    if len(width) != 3 or num_samples < 1:
        raise ValueError(f"extra_width ({extra_width}) must be 1 or 3 numbers, num_samples ({num_samples}) at least 1")
    grown = boxes[..., :7].detach().clone()
    for axis, metres in enumerate(width):  # number by number: to copy a list to a GPU makes the host wait
        grown[..., 3 + axis] += metres
    return _query(points.detach(), grown, num_samples)


@library.custom_op("pcdet::roipoint_query", mutates_args=())
def _query(points: Tensor, boxes: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    return backend("roipoint_pool", points.device.type).query(points, boxes, num_samples)


@_query.register_fake
def _(points: Tensor, boxes: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    empty = boxes.new_empty(boxes.shape[:2], dtype=torch.bool)
    return boxes.new_empty(*empty.shape, num_samples, dtype=torch.int64), empty
