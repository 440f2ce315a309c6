"""The random draws of training targets, by generators that are handed to them.

Callers write ``draws.integers(...)``: one place to look at, and to replace where a run is to be repeated exactly.
"""

import torch
from torch import Tensor


def permutation(n: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """The numbers below ``n`` in random order. (n,) int64"""
    return torch.randperm(n, generator=generator, device=device)


def integers(high: int, size: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Independent numbers below ``high``. (size,) int64"""
    return torch.randint(high, (size,), generator=generator, device=device)


def uniform(size: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Independent numbers in [0, 1). (size,) float32"""
    return torch.rand(size, generator=generator, device=device)
