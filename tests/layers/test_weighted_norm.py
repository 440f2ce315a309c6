"""Batch norm of rows that stand for several equal ones, against the rows written out."""

import pytest
import torch
from torch import nn

from pcdet.layers.sync_norm import SyncBatchNorm
from pcdet.layers.weighted_norm import normalise_rows, run_weighted


@pytest.fixture
def rows():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(9, 3, generator=draw) * 2 + 1, torch.randint(1, 6, (9,), generator=draw)


def norm_of(channels=3, **options):
    norm = nn.BatchNorm1d(channels, **options)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
    return norm


def test_by_hand():
    """Rows 1 1 1 5: mean 2, variance 3, unbiased 4."""
    norm = nn.BatchNorm1d(1, momentum=1.0, eps=0.0)
    out = normalise_rows(torch.tensor([[1.0], [5.0]]), torch.tensor([3, 1]), norm)
    torch.testing.assert_close(out, torch.tensor([[-1.0], [3.0]]) / 3**0.5)
    torch.testing.assert_close(norm.running_mean, torch.tensor([2.0]))
    torch.testing.assert_close(norm.running_var, torch.tensor([4.0]))
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("training", [True, False])
def test_equals_the_rows_written_out(rows, training, momentum):
    values, weight = rows
    mine, theirs = norm_of(momentum=momentum), nn.BatchNorm1d(3, momentum=momentum)
    theirs.load_state_dict(mine.state_dict())
    mine.train(training), theirs.train(training)
    ours, full = values.clone().requires_grad_(), values.clone().requires_grad_()
    for _ in range(2):
        out = normalise_rows(ours, weight, mine)
        expected = theirs(full.repeat_interleave(weight, dim=0))
    first = weight.cumsum(0) - weight
    torch.testing.assert_close(out, expected[first])
    pull = torch.randn(9, 3)
    (out * pull).sum().backward()
    (expected[first] * pull).sum().backward()
    torch.testing.assert_close(ours.grad, full.grad, rtol=1e-4, atol=1e-6)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_statistics_of_large_numbers_keep_their_digits():
    """A variance from 300 000 rows far from 0, of which most are equal: float32 sums in a row lose four digits."""
    rows = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)) * 5 + 40
    weight = torch.full((2000,), 150)
    norm = nn.BatchNorm1d(3, momentum=1.0)
    normalise_rows(rows, weight, norm)
    full = rows.double().repeat_interleave(weight, dim=0)
    torch.testing.assert_close(norm.running_var.double(), full.var(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(norm.running_mean.double(), full.mean(0), rtol=1e-6, atol=0)


def test_a_synchronised_norm_counts_rows_alike(rows):
    values, weight = rows
    plain, other = nn.BatchNorm1d(3), SyncBatchNorm(3)
    torch.testing.assert_close(normalise_rows(values, weight, other), normalise_rows(values, weight, plain))
    torch.testing.assert_close(other.running_var, plain.running_var)


@pytest.mark.parametrize("weight", [[], [1]])
def test_fewer_than_two_rows_leave_the_statistics_alone(weight):
    norm = norm_of()
    rows = torch.randn(len(weight), 3, requires_grad=True)
    out = normalise_rows(rows, torch.tensor(weight, dtype=torch.int64), norm)
    out.sum().backward()
    torch.testing.assert_close(out, norm.eval()(rows))
    assert norm.num_batches_tracked == 0 and rows.grad.isfinite().all()


def test_one_row_that_stands_for_many_is_its_own_mean():
    norm = norm_of()
    out = normalise_rows(torch.randn(1, 3), torch.tensor([5]), norm)
    torch.testing.assert_close(out[0], norm.bias)


def test_layers_one_after_another(rows):
    values, weight = rows
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    full = layers(values.repeat_interleave(weight, dim=0))
    torch.testing.assert_close(run_weighted(layers, values, weight), full[weight.cumsum(0) - weight])
