"""Batch norm with the statistics of all ranks, on CPUs and GPUs, for ranks with any number of rows."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcdet.utils import distributed as ranks


class SyncBatchNorm(_BatchNorm):
    """What batch norm (Ioffe and Szegedy 2015, alg. 1) makes of the batches of all ranks put together.

    Takes the place of ``nn.SyncBatchNorm``, which has no CPU and wants rows on every rank. One collective forward and
    one backward, in float64; a rank without rows takes part in both. Where all ranks together have fewer than two
    values a channel there are no statistics: they are normalised with the running ones, which stay as they are.

    Every rank must call its layers in the same order, and with gradients if one of them does.

    Args:
        process_group: the ranks that share statistics; all of them if not given. A copy of the layer has none.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_group = process_group

    @torch.compiler.disable  # collectives: a compiled model runs this layer as it is
    def forward(
        self,
        x: Tensor,  # (N, C, ...)
        repeats: Tensor | None = None,  # (N,) how many equal rows each stands for; 1 if not given
    ) -> Tensor:
        """-> (N, C, ...)"""
        self._check_input_dim(x)
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        group = self.process_group if self.training else None
        shared = ranks.is_distributed() and self.training
        known = None if self.running_mean is None else (self.running_mean.clone(), self.running_var.clone())
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        out, mean, variance, count = _Normalise.apply(
            values, self.weight, self.bias, repeats, known, self.eps, group, shared
        )
        if self.running_mean is not None:
            self._track(mean, variance, count)
        return out.to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        enough = count >= 2  # a tensor: to ask for its value would wait for the device
        self.num_batches_tracked += enough[0]
        momentum = 1 / self.num_batches_tracked.clamp(min=1).double() if self.momentum is None else self.momentum
        share = momentum * enough.double()  # (1,)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean += (share * (mean - self.running_mean)).to(self.running_mean.dtype)
        self.running_var += (share * (unbiased - self.running_var)).to(self.running_var.dtype)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"{self} takes (N, {self.num_features}, ...), not {tuple(x.shape)}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "process_group": None}  # a group of processes can be neither copied nor saved

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> nn.Module:
        """Replace every batch norm in ``module`` by one that shares its parameters and buffers, under the same name."""
        made: dict[int, SyncBatchNorm] = {}

        def converted(norm: _BatchNorm) -> SyncBatchNorm:
            if id(norm) not in made:
                made[id(norm)] = cls._like(norm, process_group)
            return made[id(norm)]

        if isinstance(module, _BatchNorm):
            return converted(module)
        for parent in list(module.modules()):
            for name, child in list(parent._modules.items()):
                if isinstance(child, _BatchNorm):
                    parent._modules[name] = converted(child)
        return module

    @classmethod
    def _like(cls, norm: _BatchNorm, process_group: dist.ProcessGroup | None) -> "SyncBatchNorm":
        made = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats, process_group)
        made._parameters, made._buffers = norm._parameters, norm._buffers
        return made.train(norm.training)


class _Normalise(torch.autograd.Function):
    """Normalise (N, C, ...); also returns mean and variance (C,) and the number of values, all over all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        repeats: Tensor | None,
        known: tuple[Tensor, Tensor] | None,  # mean and variance where there are fewer than two values
        eps: float,
        group: dist.ProcessGroup | None,
        shared: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        times = None if repeats is None else _along(repeats, x, 0)
        own = _moments(x, times)
        count, total, squares = _over_ranks(own, group, shared).split([1, x.shape[1], x.shape[1]])
        mean = total / count.clamp(min=1)
        variance = (squares / count.clamp(min=1) - mean.square()).clamp(min=0)
        enough = count >= 2
        if known is not None:
            used_mean = torch.where(enough, mean, known[0].double())
            used_variance = torch.where(enough, variance, known[1].double())
        else:
            used_mean, used_variance = mean, variance
        inverse = (used_variance + eps).rsqrt()
        scale = inverse if weight is None else inverse * weight.double()
        centre, scale = used_mean.to(x.dtype), scale.to(x.dtype)
        out = (x - _along(centre, x)) * _along(scale, x)
        if bias is not None:
            out += _along(bias.to(x.dtype), x)
        ctx.save_for_backward(x, times, centre, inverse, scale, count, enough)
        ctx.group, ctx.shared, ctx.affine = group, shared, (weight is not None, bias is not None)
        ctx.mark_non_differentiable(mean, variance, count)
        return out, mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, times, centre, inverse, scale, count, enough = ctx.saved_tensors
        centred = x - _along(centre, x)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        own = torch.cat([grad.sum(axes, dtype=torch.float64), (grad * centred).sum(axes, dtype=torch.float64)])
        # The sums of all ranks go to the rows; those of the parameters are averaged with all other gradients.
        total, products = (_over_ranks(own, ctx.group, ctx.shared) / count.clamp(min=1) * enough).chunk(2)
        slope = (products * inverse.square()).to(x.dtype)
        pull = centred.mul_(_along(slope, x)).add_(_along(total.to(x.dtype), x))
        if times is not None:
            pull *= times
        to_rows = (grad - pull) * _along(scale, x)
        to_bias, to_weight = own.chunk(2)
        has_weight, has_bias = ctx.affine
        to_weight = (to_weight * inverse).to(x.dtype) if has_weight else None
        return to_rows, to_weight, to_bias.to(x.dtype) if has_bias else None, None, None, None, None, None


def _moments(x: Tensor, times: Tensor | None) -> Tensor:
    """Number of values, sums and sums of squares of the channels, one after the other in float64. (1 + 2 C,)"""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    count = x.new_full((1,), x.numel() // x.shape[1], dtype=torch.float64)
    if times is not None:
        count = times.sum(dtype=torch.float64).view(1)
    total = (x if times is None else x * times).sum(axes, dtype=torch.float64)  # (C,)
    # Squares of small numbers: those of x itself would have lost the digits that the variance needs.
    near = (total / count.clamp(min=1)).to(x.dtype)  # (C,) close to the mean
    squares = (x - _along(near, x)).square_()
    squares = (squares if times is None else squares.mul_(times)).sum(axes, dtype=torch.float64)
    near = near.double()
    return torch.cat([count, total, squares + near * (2 * total - count * near)])


def _over_ranks(sums: Tensor, group: dist.ProcessGroup | None, shared: bool) -> Tensor:
    if not shared:
        return sums
    everywhere = sums.clone()
    ranks.all_reduce(everywhere, group=group)
    return everywhere


def _along(values: Tensor, x: Tensor, axis: int = 1) -> Tensor:
    """Values (K,) so that they broadcast along one axis of ``x``."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return values.to(x.dtype).view(shape)
