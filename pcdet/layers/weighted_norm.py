"""Batch norm of rows that stand for several equal ones."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def run_weighted(layers: Iterable[nn.Module], rows: Tensor, weight: Tensor) -> Tensor:
    """Layers one after another, where each row (R, C) stands for ``weight`` (R,) equal ones. -> (R, C')"""
    for layer in layers:
        rows = normalise_rows(rows, weight, layer) if isinstance(layer, _BatchNorm) else layer(rows)
    return rows


def normalise_rows(
    rows: Tensor,  # (R, C)
    weight: Tensor,  # (R,) int64, at least 1
    norm: nn.Module,
) -> Tensor:
    """What ``norm`` makes of rows each of which stands for ``weight`` equal ones. -> (R, C)

    Statistics and their running averages count every row as often as its weight says. A synchronised batch norm
    gets the rows themselves repeated. Fewer than two rows have no statistics: they are normalised with the running
    ones, which stay as they are.
    """
    if not norm.training or len(rows) == 0:
        if isinstance(norm, nn.SyncBatchNorm):
            return norm(rows)
        return _with_running_statistics(rows, norm)
    if isinstance(norm, nn.SyncBatchNorm):
        return norm(rows.repeat_interleave(weight, dim=0))[weight.cumsum(0) - weight]
    total = weight.sum()
    if total < 2:
        return _with_running_statistics(rows, norm)
    return _weighted_batch_norm(rows.float(), weight, total, norm)


def _with_running_statistics(rows: Tensor, norm: nn.Module) -> Tensor:
    return F.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


def _weighted_batch_norm(rows: Tensor, weight: Tensor, total: Tensor, norm: nn.Module) -> Tensor:
    share = (weight / total).unsqueeze(1)  # (R, 1)
    # Sums by sum(), which adds pairwise: a matrix product loses four digits over so many rows.
    mean = (share * rows).sum(0)  # (C,)
    centred = rows - mean
    variance = (share * centred.square()).sum(0)  # (C,)
    with torch.no_grad():
        norm.num_batches_tracked += 1
        momentum = norm.momentum if norm.momentum is not None else 1 / norm.num_batches_tracked
        unbiased = variance * (total / (total - 1))
        norm.running_mean += momentum * (mean - norm.running_mean)
        norm.running_var += momentum * (unbiased - norm.running_var)
    scale = norm.weight * (variance + norm.eps).rsqrt()  # (C,)
    return centred * scale + norm.bias
