"""The shared MLP of set abstraction (PointNet++, Qi et al. 2017, sec. 3.2) from its first norm on, and its maximum."""

from collections.abc import Sequence

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device
from pcdet.ops.grouping.door import require_rows


def grouped_mlp(
    table: Tensor,  # (B, N, C1) float32, what the first linear layer makes of each point
    shift: Tensor,  # (B, S, C1) what is taken off it in each group
    index: Tensor,  # (B, S, G) int64, the points of each group
    found: Tensor,  # (B, S) int64, how many of them differ: the first ones; the others repeat the very first
    weights: Sequence[Tensor],  # (C2, C1), (C3, C2) ... of the linear layers that follow; at least one
    offsets: Sequence[Tensor],  # (C2,), (C3,) ... their biases
    gains: Sequence[Tensor],  # (C1,), (C2,) ... of the batch norms
    biases: Sequence[Tensor],
    eps: float,
    *,
    relu: bool = True,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The maximum over each group of what an MLP makes of its points. -> (B, S, CL), means and variances of the norms.

    The first layer's values are ``table[index] - shift``. A batch norm by the rows' own statistics and a ReLU follow
    each linear layer; ``relu`` is about the last one. All B S G places count in the statistics, which carry no
    gradient (variances are over their number, not one less). A bias before a norm moves its mean and nothing else:
    the gradient of ``offsets`` is 0.

    On a CPU equal rows are computed once, and the last layer's are never written. Of equal maxima the first one gets
    the gradient. Differentiable once, in ``table``, ``shift``, ``weights``, ``gains`` and ``biases``. Works under
    ``torch.compile``. Raises ``ValueError`` for other shapes and types, without rows and, on
    the CPU outside ``torch.compile``, for an index that is not in [0, N).
    """
    gain, bias, offset = _joined(gains), _joined(biases), _joined([torch.zeros_like(gains[0]), *offsets])
    given = _checked(table, shift, index, found, weights, gain, bias)
    out, *_, mean, var = _forward(*given, offset, float(eps))
    widths = [len(g) for g in gains]
    return torch.relu(out) if relu else out, list(mean.split(widths)), list(var.split(widths))


def grouped_mlp_known(
    table: Tensor,  # (B, N, C1)
    shift: Tensor,  # (B, S, C1)
    index: Tensor,  # (B, S, G)
    found: Tensor,  # (B, S)
    weights: Sequence[Tensor],  # (C2, C1), (C3, C2) ...
    offsets: Sequence[Tensor],  # (C2,), (C3,) ...
    gains: Sequence[Tensor],  # (C1,), (C2,) ...
    biases: Sequence[Tensor],
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    eps: float,
    *,
    relu: bool = True,
) -> Tensor:
    """As :func:`grouped_mlp` with given means and variances, without a gradient. -> (B, S, CL)"""
    gain, bias, offset = _joined(gains), _joined(biases), _joined([torch.zeros_like(gains[0]), *offsets])
    given = _checked(table, shift, index, found, weights, gain, bias)
    out = _known(*given, _joined(means) - offset, _joined(variances), float(eps))
    return torch.relu(out) if relu else out


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.float() for part in parts])


def _checked(
    table: Tensor, shift: Tensor, index: Tensor, found: Tensor, weights: Sequence[Tensor], gain: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    require_columns("table", table, "(B, N, C1)", 1)
    require_same_device(table=table, shift=shift, index=index, found=found, weights=weights[0])
    batch, _, width = table.shape
    groups = index.shape[:2]
    if index.ndim != 3 or index.numel() == 0 or len(index) != batch:
        raise ValueError(f"index must be ({batch}, S, G) with at least one place, not {tuple(index.shape)}")
    if shift.shape != (*groups, width) or found.shape != groups:
        raise ValueError(
            f"shift must be {(*groups, width)} and found {tuple(groups)}, not {tuple(shift.shape)} and "
            f"{tuple(found.shape)}"
        )
    if table.dtype != torch.float32 or shift.dtype != torch.float32:
        raise ValueError(f"table and shift must be float32, not {table.dtype} and {shift.dtype}")
    widths = [width]
    for weight in weights:
        if weight.ndim != 2 or weight.shape[1] != widths[-1]:
            raise ValueError(f"a weight must be (C, {widths[-1]}), not {tuple(weight.shape)}")
        widths.append(len(weight))
    if not len(gain) == len(bias) == sum(widths):
        raise ValueError(f"norms of the widths {widths} have {sum(widths)} gains and biases, not {len(gain)}")
    require_rows("index", index, table.shape[1], "each cloud has")
    arrays = (x.contiguous() for x in (table, shift, index, found))
    return *arrays, [weight.float().contiguous() for weight in weights], gain, bias


@library.custom_op("pcdet::grouped_mlp", mutates_args=())
def _forward(
    table: Tensor,
    shift: Tensor,
    index: Tensor,
    found: Tensor,
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    offset: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    run = backend("grouped_mlp", table.device.type).forward
    top, places, kept, mean, var = run(table, shift, index, found, weights, gain, bias, eps)
    last = len(weights[-1])
    out = _last_norm(top, mean[-last:], var[-last:], gain[-last:], bias[-last:], eps)
    return out, top, places, kept, mean + offset, var


def _last_norm(top: Tensor, mean: Tensor, var: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (top - mean) * (gain * (var + eps).rsqrt()) + bias


@_forward.register_fake
def _(table, shift, index, found, weights, gain, bias, offset, eps):
    top = table.new_empty(*index.shape[:2], weights[-1].shape[0])
    kept = table.new_empty(index.numel() * sum(w.shape[0] for w in weights[:-1]))
    return torch.empty_like(top), top, torch.empty_like(top, dtype=torch.int32), kept, gain.clone(), gain.clone()


@library.custom_op("pcdet::grouped_mlp_known", mutates_args=())
def _known(
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
    run = backend("grouped_mlp", table.device.type).known
    top = run(table, shift, index, found, weights, gain, bias, mean, var, eps)
    last = len(weights[-1])
    return _last_norm(top, mean[-last:], var[-last:], gain[-last:], bias[-last:], eps)


@_known.register_fake
def _(table, shift, index, found, weights, gain, bias, mean, var, eps):
    return table.new_empty(*index.shape[:2], weights[-1].shape[0])


@library.custom_op("pcdet::grouped_mlp_backward", mutates_args=())
def _gradient(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    run = backend("grouped_mlp", grad.device.type).backward
    given = grad.contiguous(), table, shift, index, found, weights, gain, bias, top, places, kept, mean, var, eps
    to_table, to_shift, to_weights, to_gain, to_bias = run(*given)
    return to_table, to_shift, torch.cat([w.flatten() for w in to_weights]), to_gain, to_bias


@_gradient.register_fake
def _(grad, table, shift, index, found, weights, gain, bias, top, places, kept, mean, var, eps):
    flat = table.new_empty(sum(w.numel() for w in weights))
    return torch.empty_like(table), torch.empty_like(shift), flat, torch.empty_like(gain), torch.empty_like(bias)


def _keep(ctx, inputs, output):
    table, shift, index, found, weights, gain, bias, offset, ctx.eps = inputs
    out, top, places, kept, mean, var = output
    ctx.mark_non_differentiable(top, places, kept, mean, var)
    ctx.save_for_backward(table, shift, index, found, gain, bias, top, places, kept, mean - offset, var, *weights)


def _backward(ctx, grad, *_):
    table, shift, index, found, gain, bias, *results = ctx.saved_tensors
    results, weights = results[:5], results[5:]
    given = grad, table, shift, index, found, weights, gain, bias, *results, ctx.eps
    to_table, to_shift, flat, to_gain, to_bias = _gradient(*given)
    parts = flat.split([w.numel() for w in weights])
    to_weights = [part.view_as(w) for part, w in zip(parts, weights, strict=True)]
    return to_table, to_shift, None, None, to_weights, to_gain, to_bias, torch.zeros_like(gain), None


_forward.register_autograd(_backward, setup_context=_keep)
