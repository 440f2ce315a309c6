"""Rows of features, gathered by index.

The gather itself has no kernel of our own: it is bound by memory, and torch's ``index_select`` was as fast as one
(``benchmarks/ops.py`` compares the ways to write it). Its gradient has one, as torch's is several times slower.
"""

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device


def group_points(
    features: Tensor,  # (B, N, C)
    idx: Tensor,  # (B, S, G) int64, rows of the same cloud
) -> Tensor:
    """The features of each centre's neighbours (PointNet++, sec. 3.2). -> (B, S, G, C).

    Differentiable in ``features``, any number of times: the gradient of a row is the sum over all places that took
    it, the same on every run. Works under autocast and ``torch.compile``.

    Raises ``ValueError`` for other shapes, two devices and, on the CPU outside ``torch.compile``, for an index that
    is not in [0, N); a GPU reports the latter itself, or reads another cloud's row.
    """
    require_columns("features", features, "(B, N, C)", 0)
    require_same_device(features=features, idx=idx)
    if idx.ndim != 3 or len(idx) != len(features):
        raise ValueError(f"idx must have the shape ({len(features)}, S, G), not {tuple(idx.shape)}")
    batch, n, channels = features.shape
    require_rows("idx", idx, n, "each cloud has")
    first_row = torch.arange(batch, device=idx.device) * n
    rows = (idx + first_row[:, None, None]).flatten()  # (B * S * G,)
    return take_rows(features.reshape(batch * n, channels), rows).view(*idx.shape, channels)


def group_rows(
    rows: Tensor,  # (N, C)
    index: Tensor,  # (M, G) int64
) -> Tensor:
    """As :func:`group_points` for stacked scenes: the index is global. -> (M, G, C).

    Where N is 0 the result is 0: an operator that looks for neighbours among no points returns the index 0.
    """
    require_columns("rows", rows, "(N, C)", 0)
    require_same_device(rows=rows, index=index)
    if index.ndim != 2:
        raise ValueError(f"index must have the shape (M, G), not {tuple(index.shape)}")
    if len(rows) == 0:
        rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])  # (1, C)
    require_rows("index", index, len(rows), "there are")
    return take_rows(rows, index.flatten()).view(*index.shape, rows.shape[1])


def require_rows(name: str, index: Tensor, n: int, having: str) -> None:
    """Raise ``ValueError`` for an index outside [0, n): only where reading it is cheap, on a CPU and not compiled."""
    if index.device.type != "cpu" or torch.compiler.is_compiling() or index.numel() == 0:
        return
    low, high = (int(bound) for bound in index.aminmax())
    if low < 0 or high >= n:
        raise ValueError(f"{name} holds {low if low < 0 else high}, but {having} the rows 0 to {n - 1}")


@library.custom_op("pcdet::take_rows", mutates_args=())
def take_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Rows (N, C) at an index (K,) that is not checked. -> (K, C)."""
    return rows.index_select(0, index)


@take_rows.register_fake
def _(rows: Tensor, index: Tensor) -> Tensor:
    return rows.new_empty(len(index), rows.shape[1])


@library.custom_op("pcdet::sum_rows", mutates_args=())
def sum_rows(values: Tensor, index: Tensor, n: int) -> Tensor:
    """Row r of the result is the sum of the rows of ``values`` (K, C) whose ``index`` (K,) is r. -> (n, C)."""
    return backend("grouping", values.device.type).sum_rows(values, index, n)


@sum_rows.register_fake
def _(values: Tensor, index: Tensor, n: int) -> Tensor:
    return values.new_empty(n, values.shape[1])


def _keep_index(ctx, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.num_rows = len(inputs[0])


def _backward_of_take(ctx, gradient: Tensor) -> tuple[Tensor, None]:
    return sum_rows(gradient, *ctx.saved_tensors, ctx.num_rows), None


def _backward_of_sum(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
    return take_rows(gradient, *ctx.saved_tensors), None, None


take_rows.register_autograd(_backward_of_take, setup_context=_keep_index)
sum_rows.register_autograd(_backward_of_sum, setup_context=_keep_index)
