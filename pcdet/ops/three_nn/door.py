"""The three nearest neighbours in stacked clouds, and features interpolated from three rows."""

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device, scenes_for
from pcdet.ops.grouping.door import require_rows, take_rows


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

    Works under ``torch.compile``. Raises ``ValueError`` for other shapes, two devices and, where the GPU's kernels do
    not run, for counts that do not add up.
    """
    require_columns("unknown", unknown, "(N, 3+)", 3)
    require_columns("known", known, "(M, 3+)", 3)
    require_same_device(unknown=unknown, known=known)
    if unknown_counts.shape != known_counts.shape:
        raise ValueError(f"unknown holds {len(unknown_counts)} scenes but known {len(known_counts)}")
    return _nearest(unknown[:, :3].detach().float(), unknown_counts, known[:, :3].detach().float(), known_counts)


@library.custom_op("pcdet::three_nn_stack", mutates_args=())
def _nearest(unknown: Tensor, unknown_counts: Tensor, known: Tensor, known_counts: Tensor) -> tuple[Tensor, Tensor]:
    room = backend("three_nn", unknown.device.type)
    lengths = scenes_for(room, "unknown", unknown, unknown_counts), scenes_for(room, "known", known, known_counts)
    square, index = room.three_nn_stack(unknown, lengths[0], known, lengths[1])
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
    """Weighted sums of three rows of features: w0 f0 + w1 f1 + w2 f2 (PointNet++, sec. 3.4). -> (N, C).

    Differentiable in ``features`` and ``weight``, any number of times. Half precision is summed as float32;
    the result has the type of ``features``. Where M is 0 the result is 0, whatever the weights.

    Works under ``torch.compile``. Raises ``ValueError`` for other shapes, two devices and, on the CPU outside
    ``torch.compile``, for an index that is not in [0, M).
    """
    require_columns("features", features, "(M, C)", 0)
    require_same_device(features=features, index=index, weight=weight)
    if index.shape != weight.shape or index.ndim != 2 or index.shape[1] != 3:
        raise ValueError(
            f"index and weight must have the shape (N, 3), not {tuple(index.shape)}, {tuple(weight.shape)}"
        )
    if len(features) == 0:
        features = torch.cat([features, features.new_zeros(1, features.shape[1])])  # (1, C)
        weight = torch.zeros_like(weight)
    require_rows("index", index, len(features), "there are")
    return _interpolate(features, index, weight)


@library.custom_op("pcdet::three_interpolate", mutates_args=())
def _interpolate(features: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    return backend("three_nn", features.device.type).interpolate(features, index, weight)


@_interpolate.register_fake
def _(features: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    return features.new_empty(len(index), features.shape[1])


@library.custom_op("pcdet::three_spread", mutates_args=())
def _spread(values: Tensor, index: Tensor, weight: Tensor, m: int) -> Tensor:
    """The adjoint of the interpolation: each value is added to its three rows. -> (m, C)."""
    return backend("three_nn", values.device.type).spread(values, index, weight, m)


@_spread.register_fake
def _(values: Tensor, index: Tensor, weight: Tensor, m: int) -> Tensor:
    return values.new_empty(m, values.shape[1])


def _keep_inputs(ctx, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])


def _gradient_of_weight(ctx, place: int, rows: Tensor, index: Tensor, values: Tensor) -> Tensor | None:
    """``rows`` (M, C) at the index (N, 3), times ``values`` (N, C)."""
    if not ctx.needs_input_grad[place]:
        return None
    taken = take_rows(rows, index.flatten()).view(*index.shape, rows.shape[1])  # (N, 3, C)
    return (taken * values[:, None]).sum(dim=-1)  # (N, 3)


def _backward_of_interpolate(ctx, gradient: Tensor) -> tuple:
    features, index, weight = ctx.saved_tensors
    to_features = _spread(gradient, index, weight, len(features)) if ctx.needs_input_grad[0] else None
    return to_features, None, _gradient_of_weight(ctx, 2, features, index, gradient)


def _backward_of_spread(ctx, gradient: Tensor) -> tuple:
    values, index, weight = ctx.saved_tensors
    to_values = _interpolate(gradient, index, weight) if ctx.needs_input_grad[0] else None
    return to_values, None, _gradient_of_weight(ctx, 2, gradient, index, values), None


_interpolate.register_autograd(_backward_of_interpolate, setup_context=_keep_inputs)
_spread.register_autograd(_backward_of_spread, setup_context=_keep_inputs)
