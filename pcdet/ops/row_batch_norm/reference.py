"""Batch norm of rows in plain torch."""

import torch
from torch import Tensor


def normalize(
    rows: Tensor, repeats: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(R, C) -> (R, C), mean (C,), variance (C,)."""
    share = (repeats / repeats.sum())[:, None]  # (R, 1)
    mean = (share * rows).sum(dim=0)
    var = (share * (rows - mean).square()).sum(dim=0)
    scale = weight * (var + eps).rsqrt()
    out = (rows - mean) * scale + bias
    return out.relu_() if relu else out, mean, var


def normalize_backward(
    grad: Tensor,
    rows: Tensor,
    repeats: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient (R, C) of the result -> those of rows (R, C), weight (C,) and bias (C,).

    The gradient of a row's result is the sum over all rows that it stands for.
    """
    inverse = (var + eps).rsqrt()
    unit = (rows - mean) * inverse
    if relu:
        grad = torch.where((rows - mean) * (weight * inverse) + bias > 0, grad, 0)
    to_bias, to_weight = grad.sum(dim=0), (grad * unit).sum(dim=0)
    share = (repeats / repeats.sum())[:, None]  # (R, 1)
    to_rows = weight * inverse * (grad - share * (to_bias + unit * to_weight))
    return to_rows, to_weight, to_bias
