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
    rows = (idx + first_row[:, None, None]).flatten()  # (B * S * G,)
    return features.reshape(batch * n, channels).index_select(0, rows).view(*idx.shape, channels)


def _require_rows(idx: Tensor, n: int) -> None:
    if idx.numel() == 0:
        return
    low, high = (int(bound) for bound in idx.aminmax())
    if low < 0 or high >= n:
        raise ValueError(f"idx holds {low if low < 0 else high}, but each cloud has the rows 0 to {n - 1}")
