"""Batch norm of rows: by hand, against torch in float64, with repeated rows, and the precision of its sums."""

import pytest
import torch
import torch.nn.functional as F
from torch import library

from pcdet.ops.row_batch_norm import cpu, reference, row_batch_norm


def case(rows=300, channels=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, channels, generator=g) * 2 + 1
    return x, torch.rand(channels, generator=g) + 0.5, torch.randn(channels, generator=g), g


def expected(rows, weight, bias, relu):
    out = F.batch_norm(rows, None, None, weight, bias, training=True, eps=1e-5)
    return out.relu() if relu else out


def test_by_hand():
    """Column 1 1 1 5: mean 2, variance 3."""
    rows = torch.tensor([[1.0], [1.0], [1.0], [5.0]])
    out, mean, var = row_batch_norm(rows, torch.tensor([2.0]), torch.tensor([1.0]), 0.0)
    assert mean.item() == 2 and var.item() == 3
    torch.testing.assert_close(out[:, 0], 1 + 2 * torch.tensor([-1.0, -1, -1, 3]) / 3**0.5)
    clipped, _, _ = row_batch_norm(rows, torch.tensor([2.0]), torch.tensor([1.0]), 0.0, relu=True)
    assert torch.equal(clipped, out.clamp(min=0))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("rows", [5, 300, 20_000])  # less and more than a piece of work
def test_equals_torch_in_double_precision(rows, relu):
    x, weight, bias, g = case(rows)
    pull = torch.randn(x.shape, generator=g)
    mine = [t.clone().requires_grad_() for t in (x, weight, bias)]
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    out, mean, var = row_batch_norm(*mine, 1e-5, relu=relu)
    wanted = expected(*exact, relu)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mean.double(), x.double().mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(var.double(), x.double().var(0, correction=0), rtol=1e-6, atol=0)
    pull = torch.where((wanted.abs() < 1e-5) & relu, 0, pull)  # at a kink of the ReLU either side is right
    out.backward(pull)
    wanted.backward(pull.double())
    for ours, theirs in zip(mine, exact, strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4 * theirs.grad.abs().max())


@pytest.mark.parametrize("relu", [False, True])
def test_a_row_that_stands_for_several_counts_as_several(relu):
    x, weight, bias, g = case(40)
    repeats = torch.randint(1, 5, (40,), generator=g)
    first = repeats.cumsum(0) - repeats
    mine, full = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, mean, var = row_batch_norm(mine, weight, bias, 1e-5, relu=relu, repeats=repeats)
    wanted, full_mean, full_var = row_batch_norm(full.repeat_interleave(repeats, 0), weight, bias, 1e-5, relu=relu)
    torch.testing.assert_close(out, wanted[first])
    torch.testing.assert_close((mean, var), (full_mean, full_var))
    pull = torch.randn(out.shape, generator=g)
    (out * pull).sum().backward()
    (wanted[first] * pull).sum().backward()
    torch.testing.assert_close(mine.grad, full.grad, rtol=1e-4, atol=1e-5)


def test_every_backend_equals_the_reference():
    x, weight, bias, g = case()
    pull, repeats = torch.randn(x.shape, generator=g), torch.randint(1, 4, (len(x),), generator=g).float()
    for relu in (False, True):
        mine, theirs = (b.normalize(x, repeats, weight, bias, 1e-5, relu) for b in (cpu, reference))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        args = (pull, x, repeats, weight, bias, *theirs[1:], 1e-5, relu)
        mine, theirs = (b.normalize_backward(*args) for b in (cpu, reference))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_sums_of_many_rows_keep_their_digits():
    x = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0)) + 30
    _, mean, var = row_batch_norm(x, torch.ones(2), torch.zeros(2), 1e-5)
    torch.testing.assert_close(mean.double(), x.double().mean(0), rtol=2e-7, atol=0)
    torch.testing.assert_close(var.double(), x.double().var(0, correction=0), rtol=2e-6, atol=0)


def test_the_number_of_threads_changes_nothing():
    x, weight, bias, g = case(30_000)
    x.requires_grad_()
    results = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out, mean, var = row_batch_norm(x, weight, bias, 1e-5, relu=True)
        results.append((out, mean, var, *torch.autograd.grad(out.square().sum(), x)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_nan_stays_a_nan():
    x, weight, bias, _ = case()
    x[3, 1] = torch.nan
    out, _, _ = row_batch_norm(x, weight, bias, 1e-5, relu=True)
    assert out[:, 1].isnan().all() and out[:, [0, 2]].isfinite().all()


def test_opcheck():
    x, weight, bias, _ = case(6)
    args = (x.requires_grad_(), torch.ones(6), weight.requires_grad_(), bias.requires_grad_(), 1e-5, False)
    library.opcheck(torch.ops.pcdet.row_batch_norm.default, args)


def test_shapes_are_checked():
    x, weight, bias, _ = case()
    with pytest.raises(ValueError, match="at least one of float32"):
        row_batch_norm(x[:0], weight, bias, 1e-5)
    with pytest.raises(ValueError, match="float64"):
        row_batch_norm(x.double(), weight, bias, 1e-5)
    with pytest.raises(ValueError, match=r"must be \(5,\)"):
        row_batch_norm(x, weight[:2], bias, 1e-5)
    with pytest.raises(ValueError, match="repeats must be"):
        row_batch_norm(x, weight, bias, 1e-5, repeats=torch.ones(3))
