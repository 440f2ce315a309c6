"""By how many a sum of losses is divided, over micro-batches; over ranks it is tested with the training loop."""

import pytest
import torch

from pcdet.models.losses.normalizer import StepCounts, counting_over_ranks, normalizer


def test_a_count_is_itself_and_at_least_1():
    assert normalizer(3) == 3 and normalizer(0) == 1
    assert normalizer(torch.tensor(3)).item() == 3 and normalizer(torch.tensor(0)).item() == 1
    with counting_over_ranks():
        assert normalizer(3) == 3


def test_micro_batches_are_divided_by_the_mean_of_their_counts():
    """4 and 0 positives, 2 and 2 scenes: sums divided by 2 and 2, averaged over the two, are sums over 4 and 4."""
    counts, given = StepCounts(), [(torch.tensor(4), 2), (torch.tensor(0), 2)]
    for one in given:
        with counts.noting():
            assert [float(normalizer(c)) for c in one] == [max(float(c), 1) for c in one]
    counts.exchange()
    for one in given:
        with counts.dividing():
            assert [float(normalizer(c)) for c in one] == [2, 2]
    assert normalizer(5) == 5


def test_without_any_positive_the_sum_of_all_is_divided_by_1():
    counts = StepCounts()
    for _ in range(4):
        with counts.noting():
            normalizer(torch.tensor(0))
    counts.exchange()
    with counts.dividing():
        assert float(normalizer(torch.tensor(0))) == 0.25  # the mean over 4 micro-batches is the sum over 1


def test_losses_that_count_nothing_and_others_that_differ():
    counts = StepCounts()
    with counts.noting():
        pass
    counts.exchange()
    with counts.noting():
        normalizer(1)
    with pytest.raises(ValueError, match="zip"):
        counts.exchange()
