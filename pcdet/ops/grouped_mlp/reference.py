"""The shared MLP of set abstraction in plain torch: every place of every ball is a row."""

import torch
from torch import Tensor


def _first_rows(table: Tensor, shift: Tensor, index: Tensor) -> Tensor:
    """(B, N, C1), (B, S, C1), (B, S, G) -> (B * S * G, C1)"""
    cloud = torch.arange(len(table), device=table.device)[:, None, None]
    return (table[cloud, index] - shift[:, :, None]).flatten(0, 2)


def _normalised(x: Tensor, mean: Tensor, var: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - mean) * (gain * (var + eps).rsqrt()) + bias


def forward(
    table: Tensor,
    shift: Tensor,
    index: Tensor,
    found: Tensor,  # not needed here: all places are looked at
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-> maxima before the last norm and their places (B, S, CL), kept values, means and variances of all norms."""
    widths = [table.shape[2], *(len(w) for w in weights)]
    x, means, variances = _first_rows(table, shift, index), [], []
    for weight, g, b in zip([*weights, None], gain.split(widths), bias.split(widths), strict=True):
        means.append(x.mean(dim=0))
        variances.append(x.var(dim=0, correction=0))
        if weight is not None:
            x = torch.relu(_normalised(x, means[-1], variances[-1], g, b, eps)) @ weight.T
    signs = torch.where(gain.split(widths)[-1] < 0, -1.0, 1.0)
    top, places = (x * signs).view(*index.shape, -1).max(dim=2)
    return top * signs, places.int(), table.new_empty(0), torch.cat(means), torch.cat(variances)


def known(
    table: Tensor,
    shift: Tensor,
    index: Tensor,
    found: Tensor,
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> Tensor:
    """With given statistics. -> maxima before the last norm (B, S, CL)"""
    widths = [table.shape[2], *(len(w) for w in weights)]
    x = _first_rows(table, shift, index)
    norms = zip(*(v.split(widths) for v in (mean, var, gain, bias)), strict=True)
    for weight, norm in zip(weights, norms, strict=False):
        x = torch.relu(_normalised(x, *norm, eps)) @ weight.T
    signs = torch.where(gain.split(widths)[-1] < 0, -1.0, 1.0)
    return (x * signs).view(*index.shape, -1).amax(dim=2) * signs


def backward(
    grad: Tensor,
    table: Tensor,
    shift: Tensor,
    index: Tensor,
    found: Tensor,
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    top: Tensor,
    places: Tensor,
    kept: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    """Gradient (B, S, CL) of the maxima after the last norm -> those of table, shift, weights, gain and bias."""
    last = len(weights[-1])
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (table, shift, gain, bias, *weights)]
        table, shift, gain, bias, *weights = leaves
        top, _, _, mean, var = forward(table, shift, index, found, weights, gain, bias, eps)
        out = _normalised(top, mean[-last:], var[-last:], gain[-last:], bias[-last:], eps)
    to_table, to_shift, to_gain, to_bias, *to_weights = torch.autograd.grad(out, leaves, grad)
    return to_table, to_shift, to_weights, to_gain, to_bias
