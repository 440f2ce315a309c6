"""By how many a sum of losses is divided."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from pcdet.utils import distributed as ranks

Count = Tensor | int  # a tensor (), or a number of the host


def _own(count: Count) -> Count:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _mean_of_ranks(count: Count) -> Count:
    return ranks.sum_over_ranks(count).clamp(min=1) / ranks.world_size()


@dataclass
class _Scope:
    divisor: Callable[[Count], Count] = _own


_scope = _Scope()


@contextlib.contextmanager
def _dividing_by(divisor: Callable[[Count], Count]) -> Iterator[None]:
    before, _scope.divisor = _scope.divisor, divisor
    try:
        yield
    finally:
        _scope.divisor = before


def counting_over_ranks() -> AbstractContextManager:
    """Within, :func:`normalizer` counts over all ranks; a training loop puts its forward pass here.

    All ranks must compute the same losses in the same order.
    """
    return _dividing_by(_mean_of_ranks if ranks.world_size() > 1 else _own)


class StepCounts:
    """Counts over the micro-batches of one step and over all ranks.

    A micro-batch runs backward before the next one runs forward, or accumulation would save no memory; so when the
    first is divided nobody knows the counts of the others. Each runs forward twice, therefore: within :meth:`noting`,
    where only its counts matter, and, when all were noted, within :meth:`dividing`. All micro-batches of all ranks must
    compute the same losses in the same order.
    """

    def __init__(self) -> None:
        self._noted: list[list[Count]] = []  # of each micro-batch, in the order of its losses

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Around the first forward pass of a micro-batch."""
        counts: list[Count] = []
        self._noted.append(counts)

        def note(count: Count) -> Count:
            counts.append(count)
            return _own(count)

        with _dividing_by(note):
            yield

    def exchange(self) -> None:
        """Add up what was noted, over the ranks in one exchange. All ranks call this together."""
        counts = [torch.stack([torch.as_tensor(c) for c in same]).sum() for same in zip(*self._noted, strict=True)]
        device = next((c.device for c in counts if c.is_cuda), torch.device("cpu"))
        sums = ranks.sum_over_ranks(torch.stack([c.to(device) for c in counts])) if counts else torch.zeros(0)
        self._means = sums.clamp(min=1).to(device) / (len(self._noted) * ranks.world_size())  # (losses,)

    def dividing(self) -> AbstractContextManager:
        """Around the second forward pass of a micro-batch."""
        means = iter(self._means)
        return _dividing_by(lambda _: next(means))


def normalizer(count: Count) -> Count:
    """What to divide a sum over ``count`` things by, for a mean; 1 where there are none.

    That is ``count`` itself, as in OpenPCDet: with several ranks or micro-batches, whose gradients are averaged, one
    with few positives then weighs each of them more. Within :func:`counting_over_ranks` it is the mean count of the
    ranks, so that the average over the ranks is the sum over all of them divided by the count over all of them; within
    :class:`StepCounts` it is the mean count of the ranks and micro-batches of a step.
    """
    return _scope.divisor(count)
