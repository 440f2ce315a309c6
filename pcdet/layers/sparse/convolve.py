"""The differentiable product of sparse features and kernel weights along a rulebook."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pcdet.layers.sparse.backend import backend
from pcdet.layers.sparse.rulebook import Rulebook


def convolve(features: Tensor, weight: Tensor, rulebook: Rulebook, inverse: bool = False) -> Tensor:
    """Features at the output sites. (N, I) and weights in spconv-2's layout (O, *kernel, I) -> (M, O).

    ``inverse`` follows the rulebook backwards, from its output sites to its input sites. Under autocast on a GPU the
    product is computed in autocast's type; on a CPU in the type of the features, or float32 where that is shorter.
    First derivatives only.
    """
    device = features.device.type
    if device != "cpu" and torch.is_autocast_enabled(device):
        features = features.to(torch.get_autocast_dtype(device))
    elif device == "cpu" and features.dtype in (torch.float16, torch.bfloat16):
        features = features.float()
    with torch.autocast(device, enabled=False):
        return _SparseProduct.apply(features, weight.to(features.dtype), rulebook, inverse)


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, rulebook: Rulebook, inverse: bool) -> Tensor:
        ctx.save_for_backward(features, weight)
        ctx.rulebook, ctx.inverse = rulebook, inverse
        matrices = weight.flatten(1, -2).permute(1, 2, 0)  # (K, I, O)
        return backend(features).product(features, matrices, rulebook, inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        features, weight = ctx.saved_tensors
        make = backend(features)
        grad_features = grad_weight = None
        if ctx.needs_input_grad[0]:
            matrices = weight.flatten(1, -2).transpose(0, 1)  # (K, O, I)
            grad_features = make.product(grad, matrices, ctx.rulebook, not ctx.inverse)
        if ctx.needs_input_grad[1]:
            by_offset = make.product_gradient(features, grad, ctx.rulebook, ctx.inverse)  # (K, I, O)
            grad_weight = by_offset.permute(2, 0, 1).reshape(weight.shape)
        return grad_features, grad_weight, None, None
