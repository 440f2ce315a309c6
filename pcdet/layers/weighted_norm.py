"""Batch norm of rows that stand for several equal ones."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcdet.layers.sync_norm import SyncBatchNorm
from pcdet.ops.row_batch_norm import row_batch_norm


def run_weighted(layers: Iterable[nn.Module], rows: Tensor, weight: Tensor | None) -> Tensor:
    """Layers one after another, where each row (R, C) stands for ``weight`` (R,) equal ones. -> (R, C')

    A ReLU that follows a batch norm is done by it, in one pass over the memory.
    """
    layers, done = list(layers), None
    weight = None if weight is None else weight.float()  # what the kernels read
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        if isinstance(layer, _BatchNorm):
            rows = normalise_rows(rows, weight, layer, relu=isinstance(following, nn.ReLU))
            done = following
        elif layer is not done or not isinstance(layer, nn.ReLU):
            rows = layer(rows)
    return rows


def normalise_rows(
    rows: Tensor,  # (R, C)
    weight: Tensor | None,  # (R,) whole numbers, at least 1; None if every row stands for itself
    norm: nn.Module,
    *,
    relu: bool = False,
) -> Tensor:
    """What ``norm``, and a ReLU after it, make of rows each of which stands for ``weight`` equal ones. -> (R, C)

    Statistics and their running averages count every row as often as its weight says, and those of all ranks where
    the norm is synchronised. Fewer than two rows have no statistics: they are normalised with the running ones, which
    stay as they are.
    """
    if isinstance(norm, SyncBatchNorm):
        out = norm(rows, weight)
    elif norm.training and (total := len(rows) if weight is None else weight.sum()) >= 2:
        return _with_own_statistics(rows.float(), weight, total, norm, relu)
    else:
        out = F.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    return out.relu_() if relu else out  # the norm does not keep its output for the backward pass


def _with_own_statistics(
    rows: Tensor, weight: Tensor | None, total: Tensor | int, norm: nn.Module, relu: bool
) -> Tensor:
    out, mean, variance = row_batch_norm(rows, norm.weight, norm.bias, norm.eps, relu=relu, repeats=weight)
    track_statistics(norm, mean, variance, total)
    return out


def has_own_statistics(norm: nn.Module) -> bool:
    """Does ``norm`` normalise by the statistics of this rank's rows alone?"""
    return norm.training and not isinstance(norm, SyncBatchNorm)


@torch.no_grad()
def track_statistics(norm: nn.Module, mean: Tensor, variance: Tensor, total: Tensor | int) -> None:
    """Move the running averages of ``norm`` to the mean and variance (C,) of ``total`` rows."""
    norm.num_batches_tracked += 1
    momentum = norm.momentum if norm.momentum is not None else 1 / norm.num_batches_tracked
    norm.running_mean += momentum * (mean - norm.running_mean)
    norm.running_var += momentum * (variance * (total / (total - 1)) - norm.running_var)
