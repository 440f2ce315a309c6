"""Mixed precision: what becomes of gradients and of the loss scale."""

import pytest
import torch
from torch import nn

from pcdet.train_utils.precision import MOST_OVERFLOWS, Precision

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)


@pytest.fixture
def parts():
    """A weight of 1, an optimiser that subtracts the gradient, and float16's scaler, which runs on CPUs too."""
    weight = nn.Parameter(torch.ones(1))
    return weight, torch.optim.SGD([weight], lr=1.0), Precision(CPU, torch.float16, loss_scale=64.0)


def backward(parts, gradient):
    """A loss with this gradient, brought to its true size."""
    weight, optimizer, precision = parts
    optimizer.zero_grad()
    precision.backward((weight * gradient).sum())
    precision.unscale(optimizer)


def test_dropped_gradients_make_no_step_and_leave_the_scale(parts):
    """Backward, unscale, drop; then backward, unscale and step, of the second gradient alone."""
    weight, optimizer, precision = parts
    backward(parts, float("nan"))
    precision.step(optimizer, taken=False, dropped=YES)
    assert precision.scaler.get_scale() == 64.0
    backward(parts, 0.25)  # raises "unscale_() has already been called" if the first were not dropped
    assert weight.grad.item() == 0.25
    precision.step(optimizer, taken=True, dropped=NO)
    assert weight.item() == 0.75
    assert precision.scaler.get_scale() == 64.0


def test_an_overflow_halves_the_scale_and_moves_nothing(parts):
    weight, optimizer, precision = parts
    backward(parts, float("inf"))
    precision.step(optimizer, taken=False, dropped=NO)
    assert (weight.item(), precision.scaler.get_scale()) == (1.0, 32.0)
    backward(parts, 0.5)
    precision.step(optimizer, taken=True, dropped=NO)
    assert (weight.item(), precision.scaler.get_scale()) == (0.5, 32.0)


def test_gradients_that_no_scale_helps_are_tolerated_no_longer(parts):
    precision = parts[2]
    for _ in range(MOST_OVERFLOWS):
        assert precision.tolerates_overflow()
        precision.note(overflowed=True)
    assert not precision.tolerates_overflow()
    precision.note(overflowed=False)
    assert precision.tolerates_overflow()


def test_without_a_scale_nothing_is_tolerated_and_dropping_does_nothing():
    weight, precision = nn.Parameter(torch.ones(1)), Precision(CPU, torch.bfloat16)
    given = weight, torch.optim.SGD([weight], lr=1.0), precision
    backward(given, float("nan"))
    precision.step(given[1], taken=False, dropped=YES)
    assert not precision.tolerates_overflow() and precision.state_dict() == {}
    backward(given, 0.5)
    precision.step(given[1], taken=True, dropped=NO)
    assert weight.item() == 0.5


def test_fp16_on_a_cpu_is_refused():
    with pytest.raises(ValueError, match="fp16 needs a GPU: a CPU trains in bf16"):
        Precision.mixed(CPU, 64.0, "fp16")
