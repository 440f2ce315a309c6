"""Matrix products on a CPU."""

import functools

import torch
from torch import Tensor


@functools.cache
def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows @ weight.T`` in float32: (R, K), (N, K) -> (R, N), without a gradient.

    By oneDNN where torch was built with it: MKL, which serves ``torch.mm``, leaves half of the vector width of some
    CPUs unused. oneDNN compiles a kernel for each new shape (milliseconds, kept): call this with few different ones.
    """
    if _has_onednn():
        return torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return torch.mm(rows, weight.T)
