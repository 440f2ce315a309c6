"""Maximum and mean of features over groups of rows, forward and backward."""

from typing import Literal

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device


def segment_max(
    features: Tensor,  # (N, C)
    segment: Tensor,  # (N,) int64 in [0, S)
    num_segments: int,
) -> Tensor:
    """The largest value of each channel over the rows of each segment. -> (S, C), 0 where a segment has no row.

    Equals ``torch_scatter.scatter_max(features, segment, dim=0)[0]``. Among equal values the first row is taken, and
    it alone gets the gradient, where torch's ``scatter_reduce`` would share it. A NaN in a segment is its result; to
    which of its rows the gradient goes then is not defined.
    Differentiable once; the backward pass adds in a fixed order on a CPU. Works under autocast and ``torch.compile``.

    Raises ``ValueError`` for other shapes, two devices and, on the CPU outside ``torch.compile``, for a segment that
    is not in [0, S).
    """
    return _segment_pool(features, segment, num_segments, "max")


def segment_mean(
    features: Tensor,  # (N, C)
    segment: Tensor,  # (N,) int64 in [0, S)
    num_segments: int,
) -> Tensor:
    """The mean over the rows of each segment. -> (S, C), 0 where a segment has no row.

    Equals ``torch_scatter.scatter_mean(features, segment, dim=0)``. All else as in :func:`segment_max`.
    """
    return _segment_pool(features, segment, num_segments, "mean")


def _segment_pool(features: Tensor, segment: Tensor, num_segments: int, method: str) -> Tensor:
    require_columns("features", features, "(N, C)", 0)
    require_same_device(features=features, segment=segment)
    if segment.shape != features.shape[:1]:
        raise ValueError(f"segment must have the shape ({len(features)},), not {tuple(segment.shape)}")
    if features.device.type == "cpu" and not (features.requires_grad and torch.is_grad_enabled()):
        # The rows need not be sorted, which pays only where the backward pass uses their order.
        _require_segments(segment, num_segments)
        return _reduce(features, segment.long(), num_segments, method)
    return _pool(features, *rows_by_segment(segment, num_segments), method)


def _reduce(features: Tensor, segment: Tensor, num_segments: int, method: str) -> Tensor:
    work = features if features.dtype == torch.float64 else features.float()
    pooled = work.new_zeros(num_segments, features.shape[1])
    index = segment[:, None].expand_as(work)
    pooled.scatter_reduce_(0, index, work, {"max": "amax", "mean": "mean"}[method], include_self=False)
    return pooled.to(features.dtype)


def rows_by_segment(
    segment: Tensor,  # (N,) int64 in [0, S)
    num_segments: int,
) -> tuple[Tensor, Tensor]:
    """Row numbers sorted by segment, in order within one, and where each begins. -> (N,), (S + 1,), int64.

    For :func:`pool_rows`, where several features are pooled over the same segments. Errors as in :func:`segment_max`.
    """
    if segment.ndim != 1:
        raise ValueError(f"segment must have the shape (N,), not {tuple(segment.shape)}")
    _require_segments(segment, num_segments)
    return _rows_by_segment(segment.long(), num_segments)


def _require_segments(segment: Tensor, num_segments: int) -> None:
    if segment.device.type != "cpu" or torch.compiler.is_compiling() or not segment.numel():
        return
    low, high = (int(bound) for bound in segment.aminmax())
    if low < 0 or high >= num_segments:
        raise ValueError(f"segment holds {low if low < 0 else high}, but must be from 0 to {num_segments - 1}")


def pool_rows(
    features: Tensor,  # (N, C)
    rows: Tensor,  # (K,) int64 in [0, N), those of one group after those of another
    start: Tensor,  # (S + 1,) int64: group s owns the rows from start[s] to start[s + 1]
    method: Literal["max", "mean"],
) -> Tensor:
    """Pool groups of rows that may overlap, as those of overlapping boxes do. -> (S, C), 0 where a group is empty.

    The features of the K rows are never copied. Ties, NaN, order and gradient as in :func:`segment_max`. Half
    precision is summed in float32.

    Raises ``ValueError`` for other shapes, two devices, another method and, on the CPU outside ``torch.compile``, for
    a row that is not in [0, N).
    """
    require_columns("features", features, "(N, C)", 0)
    require_same_device(features=features, rows=rows, start=start)
    if rows.ndim != 1 or start.ndim != 1 or len(start) < 1:
        raise ValueError(f"rows {tuple(rows.shape)} and start {tuple(start.shape)} must be (K,) and (S + 1,)")
    if method not in ("max", "mean"):
        raise ValueError(f"method must be 'max' or 'mean', not {method!r}")
    if features.device.type == "cpu" and not torch.compiler.is_compiling():
        _require_rows(rows, start, len(features))
    return _pool(features, rows, start, method)


def _pool(features: Tensor, rows: Tensor, start: Tensor, method: str) -> Tensor:
    work = features if features.dtype == torch.float64 else features.float()
    pooled = _pool_max(work, rows, start)[0] if method == "max" else _pool_mean(work, rows, start)
    return pooled.to(features.dtype)


def _require_rows(rows: Tensor, start: Tensor, n: int) -> None:
    if int(start[0]) != 0 or int(start[-1]) != len(rows) or bool((start.diff() < 0).any()):
        raise ValueError(f"start must rise from 0 to the number of rows, {len(rows)}")
    if len(rows) == 0:
        return
    low, high = (int(bound) for bound in rows.aminmax())
    if low < 0 or high >= n:
        raise ValueError(f"rows hold {low if low < 0 else high}, but features have the rows 0 to {n - 1}")


@library.custom_op("pcdet::rows_by_segment", mutates_args=())
def _rows_by_segment(segment: Tensor, num_segments: int) -> tuple[Tensor, Tensor]:
    return backend("scatter", segment.device.type).rows_by_segment(segment, num_segments)


@_rows_by_segment.register_fake
def _(segment: Tensor, num_segments: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(segment), segment.new_empty(num_segments + 1)


@library.custom_op("pcdet::pool_rows_max", mutates_args=())
def _pool_max(features: Tensor, rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    return backend("scatter", features.device.type).pool_max(features, rows, start)


@_pool_max.register_fake
def _(features: Tensor, rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    pooled = features.new_empty(start.shape[0] - 1, features.shape[1])
    return pooled, torch.empty_like(pooled, dtype=torch.int32)


@library.custom_op("pcdet::pool_rows_max_backward", mutates_args=())
def _pool_max_backward(grad: Tensor, source: Tensor, rows: Tensor, start: Tensor, num_rows: int) -> Tensor:
    return backend("scatter", grad.device.type).pool_max_backward(grad, source, rows, start, num_rows)


@_pool_max_backward.register_fake
def _(grad: Tensor, source: Tensor, rows: Tensor, start: Tensor, num_rows: int) -> Tensor:
    return grad.new_empty(num_rows, grad.shape[1])


@library.custom_op("pcdet::pool_rows_mean", mutates_args=())
def _pool_mean(features: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    return backend("scatter", features.device.type).pool_mean(features, rows, start)


@_pool_mean.register_fake
def _(features: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    return features.new_empty(start.shape[0] - 1, features.shape[1])


@library.custom_op("pcdet::pool_rows_mean_backward", mutates_args=())
def _pool_mean_backward(grad: Tensor, rows: Tensor, start: Tensor, num_rows: int) -> Tensor:
    return backend("scatter", grad.device.type).pool_mean_backward(grad, rows, start, num_rows)


@_pool_mean_backward.register_fake
def _(grad: Tensor, rows: Tensor, start: Tensor, num_rows: int) -> Tensor:
    return grad.new_empty(num_rows, grad.shape[1])


def _keep_for_max(ctx, inputs, output) -> None:
    ctx.num_rows = inputs[0].shape[0]
    ctx.save_for_backward(output[1], *inputs[1:])


def _grad_of_max(ctx, grad: Tensor, _source: Tensor) -> tuple[Tensor, None, None]:
    return _pool_max_backward(grad, *ctx.saved_tensors, ctx.num_rows), None, None


def _keep_for_mean(ctx, inputs, output) -> None:
    ctx.num_rows = inputs[0].shape[0]
    ctx.save_for_backward(*inputs[1:])


def _grad_of_mean(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
    return _pool_mean_backward(grad, *ctx.saved_tensors, ctx.num_rows), None, None


_pool_max.register_autograd(_grad_of_max, setup_context=_keep_for_max)
_pool_mean.register_autograd(_grad_of_mean, setup_context=_keep_for_mean)
