"""Ranks and collectives; every function works, and does nothing, in a single process."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    return dist.get_world_size() if is_distributed() else 1


def local_rank() -> int:
    """Rank within this machine, as torchrun and torch.distributed.launch set it; 0 without a launcher."""
    return int(os.environ.get("LOCAL_RANK", 0))


def is_main() -> bool:
    return rank() == 0


def barrier() -> None:
    if is_distributed():
        dist.barrier()


@dataclass
class _Watch:
    around: Callable[[], AbstractContextManager] = contextlib.nullcontext


_watch = _Watch()


@contextlib.contextmanager
def timing_collectives(around: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Within it, every :func:`all_reduce` runs inside a context that ``around`` makes."""
    before, _watch.around = _watch.around, around
    try:
        yield
    finally:
        _watch.around = before


def all_reduce(tensor: Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None) -> None:
    """Put the sum over the ranks (or what ``op`` says) into ``tensor``."""
    with _watch.around():
        dist.all_reduce(tensor, op, group=group)


def gather_objects(value: T) -> list[T]:
    """The values of all ranks, in rank order, on every rank. Values are plain types and NumPy arrays."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def any_over_ranks(flags: Tensor) -> Tensor:
    """(F,) bool -> (F,) bool: does any rank raise the flag? All ranks call this together, with equally many flags."""
    if not is_distributed():
        return flags
    raised = flags.to(torch.int32, copy=True)
    if dist.get_backend() != "nccl":
        raised = raised.cpu()
    all_reduce(raised, dist.ReduceOp.MAX)
    return raised.to(flags.device, torch.bool)


def sum_over_ranks(count: Tensor | int) -> Tensor:
    """Sum of a whole number over the ranks, on the device where the ranks meet. -> () int64"""
    total = torch.as_tensor(count, dtype=torch.int64).clone()
    if not is_distributed():
        return total
    if dist.get_backend() == "nccl" and not total.is_cuda:
        total = total.to(torch.device("cuda", local_rank()))
    all_reduce(total)
    return total
