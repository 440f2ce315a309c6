"""By how many a sum of losses is divided."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from pcdet.utils import distributed as ranks


@dataclass
class _Scope:
    over_ranks: bool = False


_scope = _Scope()


@contextlib.contextmanager
def counting(over_ranks: bool) -> Iterator[None]:
    """Within, :func:`normalizer` counts over all ranks, if ``over_ranks``; a training loop puts its forward pass here.

    All ranks must compute the same losses in the same order.
    """
    before, _scope.over_ranks = _scope.over_ranks, over_ranks
    try:
        yield
    finally:
        _scope.over_ranks = before


def normalizer(count: Tensor | int) -> Tensor | int:
    """What to divide a sum over ``count`` things by, for a mean; 1 where there are none. A number or a tensor ().

    Outside of :func:`counting` that is ``count``, as in OpenPCDet: with several ranks, whose gradients are averaged,
    a rank with few positives then weighs each of them more. Within it is the mean count of the ranks, so that the
    average over the ranks is the sum over all of them divided by the count over all of them. The micro-batches of an
    accumulated step are not counted together: each has been run backward before the next is counted.
    """
    if _scope.over_ranks and ranks.world_size() > 1:
        return ranks.sum_over_ranks(count).clamp(min=1) / ranks.world_size()
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
