"""The Triton kernels of the batch norm of rows against the reference in float64."""

import pytest
import torch
from ops_cases import generator

from pcdet.ops.row_batch_norm import row_batch_norm


def case(count, channels, spread=1.0):
    g = generator(count)
    rows = torch.randn(count, channels, generator=g) * spread + 5
    repeats = torch.randint(1, 9, (count,), generator=g).float()
    weight, bias = torch.randn(channels, generator=g), torch.randn(channels, generator=g)
    return rows, repeats, weight, bias, torch.randn(count, channels, generator=g)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("count, channels", [(2, 1), (700, 20), (1300, 70), (1, 3)])
def test_forward_and_backward(rooms, device, count, channels, relu):
    kernel, reference = rooms("row_batch_norm")
    *inputs, grad = case(count, channels)
    out, mean, var = (x.cpu() for x in kernel.normalize(*(x.to(device) for x in inputs), 1e-5, relu))
    exact, exact_mean, exact_var = reference.normalize(*(x.double() for x in inputs), 1e-5, relu)
    assert out.dtype == torch.float32 and torch.allclose(out.double(), exact, rtol=1e-4, atol=1e-5)
    assert torch.allclose(mean.double(), exact_mean, rtol=1e-6) and torch.allclose(var.double(), exact_var, rtol=1e-5)
    given = (grad, *inputs, mean, var)
    found = kernel.normalize_backward(*(x.to(device) for x in given), 1e-5, relu)
    expected = reference.normalize_backward(*(x.double() for x in given), 1e-5, relu)
    near_zero = (exact.abs() < 1e-5).any(dim=1) if relu else torch.zeros(count, dtype=torch.bool)
    assert torch.allclose(found[0].cpu().double()[~near_zero], expected[0][~near_zero], rtol=1e-3, atol=1e-4)
    for ours, exactly in zip(found[1:], expected[1:], strict=True):
        assert torch.allclose(ours.cpu().double(), exactly, rtol=1e-4, atol=1e-3)


def test_a_large_mean_costs_no_digits_of_the_variance(rooms, device):
    kernel, reference = rooms("row_batch_norm")
    *inputs, _ = case(1500, 3, spread=1e-2)
    inputs[0] += 1000
    var = kernel.normalize(*(x.to(device) for x in inputs), 1e-5, False)[2].cpu().double()
    assert torch.allclose(var, reference.normalize(*(x.double() for x in inputs), 1e-5, False)[2], rtol=1e-3)


def test_a_nan_passes_the_relu(rooms, device):
    rows = torch.tensor([[float("nan"), -1.0], [1.0, 1.0]], device=device)
    ones = torch.ones(2, device=device)
    out, *_ = rooms("row_batch_norm")[0].normalize(rows, ones, ones, ones * 0, 1e-5, True)
    assert out[:, 0].isnan().all() and out[0, 1] == 0 and out[1, 1] > 0.9


def test_through_the_door(through_triton):
    rows, repeats, weight, bias, grad = (x.to(through_triton) for x in case(40, 5))
    leaves = [x.double().requires_grad_() for x in (rows, weight, bias)]
    share = (repeats.double() / repeats.double().sum())[:, None]
    mean = (share * leaves[0]).sum(0)
    var = (share * (leaves[0] - mean).square()).sum(0)
    exact = (leaves[0] - mean) * (var + 1e-5).rsqrt() * leaves[1] + leaves[2]
    # a row stands for several, and its gradient is their sum
    expected = torch.autograd.grad(exact, leaves, grad.double())
    ours = [x.clone().requires_grad_() for x in (rows, weight, bias)]
    out = row_batch_norm(*ours, 1e-5, repeats=repeats)[0]
    assert torch.allclose(out.double(), exact, atol=1e-5)
    for found, wanted in zip(torch.autograd.grad(out, ours, grad), expected, strict=True):
        assert torch.allclose(found.double(), wanted, rtol=1e-3, atol=1e-4)
