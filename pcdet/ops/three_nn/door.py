"""The three nearest neighbours in stacked clouds, and features interpolated from three rows."""

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device, require_scenes
from pcdet.ops.grouping import group_rows


def three_nn_stack(
    unknown: Tensor,  # (N, 3+) the scenes' query points one after another
    unknown_counts: Tensor,  # (B,) int64, query points of each scene
    known: Tensor,  # (M, 3+) the scenes' known points one after another
    known_counts: Tensor,  # (B,) int64
) -> tuple[Tensor, Tensor]:
    """The three known points of the same scene nearest to each query point. -> distances, indices int64 (N, 3).

    PointNet++, sec. 3.4. Distances are in metres, the square roots of float32 squares, and ascend; of equally distant
    points the lower index comes first. The indices are **global**: they refer to rows of ``known``. Where a scene has
    fewer than three known points (or finite ones), the distance of a missing one is infinite and its index that of
    the scene's first known point, or 0 where the scene has none: always a row of ``known`` unless M is 0. No gradient
    flows. The weights of an interpolation are the caller's, usually 1 / (distance + 1e-8) over their sum.

    Works under ``torch.compile``. Raises ``ValueError`` for other shapes, counts that do not add up and two devices.
    """
    require_columns("unknown", unknown, "(N, 3+)", 3)
    require_columns("known", known, "(M, 3+)", 3)
    require_same_device(unknown=unknown, known=known)
    if unknown_counts.shape != known_counts.shape:
        raise ValueError(f"unknown holds {len(unknown_counts)} scenes but known {len(known_counts)}")
    return _nearest(unknown[:, :3].detach().float(), unknown_counts, known[:, :3].detach().float(), known_counts)


@library.custom_op("pcdet::three_nn_stack", mutates_args=())
def _nearest(unknown: Tensor, unknown_counts: Tensor, known: Tensor, known_counts: Tensor) -> tuple[Tensor, Tensor]:
    lengths = require_scenes("unknown", unknown, unknown_counts), require_scenes("known", known, known_counts)
    square, index = backend("three_nn", unknown.device.type).three_nn_stack(unknown, lengths[0], known, lengths[1])
    return square.sqrt_(), index


@_nearest.register_fake
def _(unknown: Tensor, unknown_counts: Tensor, known: Tensor, known_counts: Tensor) -> tuple[Tensor, Tensor]:
    distance = unknown.new_empty(len(unknown), 3)
    return distance, distance.new_empty(distance.shape, dtype=torch.int64)


def three_interpolate(
    features: Tensor,  # (M, C)
    index: Tensor,  # (N, 3) int64, rows of features
    weight: Tensor,  # (N, 3)
) -> Tensor:
    """Weighted sums of three rows of features: w0 f0 + w1 f1 + w2 f2 (PointNet++, sec. 3.4). -> (N, C)."""
    return (group_rows(features, index) * weight[..., None]).sum(dim=1)
