"""Numbers of a configuration as tensors."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def constant(values: Sequence[float], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``values`` as a tensor of the type (or ``dtype``) and on the device of ``like``. (len(values),)

    Not to be written to. To copy numbers to a GPU makes the host wait for all that it asked of it before, so there they
    are copied once and kept.
    """
    dtype = dtype or like.dtype
    if like.device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    return _kept(tuple(values), dtype, like.device)


@lru_cache(maxsize=1024)
def _kept(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)
