"""Rows of features, gathered by index.

There is no kernel of our own: the gather is bound by memory, and torch's ``index_select`` was as fast as one
(``benchmarks/ops.py`` compares the ways to write it), forward and backward, on rows that are contiguous.
"""

import torch
from torch import Tensor

from pcdet.ops.doors import require_columns, require_same_device


def group_points(
    features: Tensor,  # (B, N, C)
    idx: Tensor,  # (B, S, G) int64, rows of the same cloud
) -> Tensor:
    """The features of each centre's neighbours (PointNet++, sec. 3.2). -> (B, S, G, C).

    Differentiable in ``features``, any number of times: the gradient of a row is the sum over all places that took
    it. Works under autocast and ``torch.compile``.

    Raises ``ValueError`` for other shapes, two devices and, on the CPU outside ``torch.compile``, for an index that
    is not in [0, N); a GPU reports the latter itself, or reads another cloud's row.
    """
    require_columns("features", features, "(B, N, C)", 0)
    require_same_device(features=features, idx=idx)
    if idx.ndim != 3 or len(idx) != len(features):
        raise ValueError(f"idx must have the shape ({len(features)}, S, G), not {tuple(idx.shape)}")
    batch, n, channels = features.shape
    if features.device.type == "cpu" and not torch.compiler.is_compiling():
        _require_rows(idx, n)
    first_row = torch.arange(batch, device=idx.device) * n
    rows = (idx + first_row[:, None, None]).flatten(0, 1)  # (B * S, G)
    return _group(features.reshape(batch * n, channels), rows).view(*idx.shape, channels)


def group_rows(
    rows: Tensor,  # (N, C)
    index: Tensor,  # (M, G) int64
) -> Tensor:
    """As :func:`group_points` for stacked scenes: the index is global. -> (M, G, C).

    Where there are no rows at all, the result is zero: operators that search neighbours in nothing return index 0.
    """
    require_columns("rows", rows, "(N, C)", 0)
    require_same_device(rows=rows, index=index)
    if index.ndim != 2:
        raise ValueError(f"index must have the shape (M, G), not {tuple(index.shape)}")
    if len(rows) == 0:
        return rows.new_zeros(*index.shape, rows.shape[1]) + rows.sum()
    if rows.device.type == "cpu" and not torch.compiler.is_compiling():
        _require_rows(index, len(rows))
    return _group(rows, index)


def _group(rows: Tensor, index: Tensor) -> Tensor:
    return rows.index_select(0, index.flatten()).view(*index.shape, rows.shape[1])


def _require_rows(idx: Tensor, n: int) -> None:
    if idx.numel() == 0:
        return
    low, high = (int(bound) for bound in idx.aminmax())
    if low < 0 or high >= n:
        raise ValueError(f"idx holds {low if low < 0 else high}, but each cloud has the rows 0 to {n - 1}")
