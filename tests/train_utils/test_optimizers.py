"""Optimisers: recorded steps, order of parameters, foreign states."""

import numpy as np
import pytest
import torch
from torch import nn

from pcdet.train_utils.optimizers import (
    batch_norms,
    build_optimizer,
    load_optimizer_state,
    set_norm_momentum,
    set_rates,
)
from pcdet.train_utils.schedules import RunLength, StepValues, build_schedule
from pcdet.train_utils.settings import Optimization


def toy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def test_adam_onecycle_equals_the_recorded_steps(shared):
    """Five steps on a linear layer with BatchNorm, loss mean((y - 1)^2).

    BatchNorm makes this loss independent of the linear layer but for its epsilon. So the gradient of the weight is
    near, and that of the bias at, rounding noise: the weight is compared loosely, the bias not at all.
    """
    recorded = np.load(shared / "oracles" / "openpcdet_data" / "adam_onecycle_toy.npz")
    net = toy()
    net.load_state_dict({k[5:]: torch.from_numpy(recorded[k]) for k in recorded if k.startswith("init_")})
    settings = Optimization(lr=0.003, weight_decay=0.01)
    optimizer = build_optimizer(net, settings)
    schedule = build_schedule(settings, RunLength(8000, 100, 4))
    for step in range(5):
        set_rates(optimizer, schedule(step))
        optimizer.zero_grad()
        (net(torch.from_numpy(recorded[f"x_{step}"])) - 1).square().mean().backward()
        optimizer.step()
    for name, tolerance in (("1.weight", 1e-6), ("1.bias", 1e-6), ("1.running_var", 1e-6), ("0.weight", 1e-5)):
        np.testing.assert_allclose(net.state_dict()[name].numpy(), recorded[f"final_{name}"], atol=tolerance, rtol=0)


def test_weight_decay_is_decoupled_and_reaches_batch_norm():
    """With gradients of zero, weights shrink by lr * decay alone."""
    net = toy()
    optimizer = build_optimizer(net, Optimization(lr=0.1, weight_decay=0.5))
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer.step()
    for old, new in zip(before, net.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old * 0.95)


def test_parameters_outside_batch_norm_come_first():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    groups = build_optimizer(net, Optimization()).param_groups
    assert [[tuple(p.shape) for p in g["params"]] for g in groups] == [
        [(5, 2), (5,), (1, 5), (1,)],
        [(2,), (2,), (5,), (5,)],
    ]


def test_frozen_parameters_are_left_out_and_nothing_to_train_is_an_error():
    net = toy()
    net[0].weight.requires_grad_(False)
    assert sum(len(g["params"]) for g in build_optimizer(net, Optimization()).param_groups) == 3
    with pytest.raises(ValueError, match="no parameter to train"):
        build_optimizer(net.requires_grad_(False), Optimization())


@pytest.mark.parametrize("name", ["adam_onecycle", "adam_cosineanneal", "adam_staircase", "adam", "sgd"])
def test_every_optimizer_reduces_a_loss(name):
    net = nn.Linear(4, 1)
    optimizer = build_optimizer(net, Optimization(optimizer=name, lr=0.01, weight_decay=0.0))
    x = torch.eye(4)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (net(x) - 2).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_schedule_values_reach_groups_and_norms():
    net = toy()
    optimizer = build_optimizer(net, Optimization())
    values = StepValues(0.123, 0.9, 0.25)
    set_rates(optimizer, values)
    set_norm_momentum(batch_norms(net), values)
    assert all(g["lr"] == 0.123 and g["betas"] == (0.9, 0.99) for g in optimizer.param_groups)
    assert net[1].momentum == 0.25


def test_a_state_saved_by_plain_adam_keeps_its_moments_and_not_its_decay():
    """OpenPCDet's groups say weight_decay 0 and coupled decay, because it decays outside of Adam."""
    net = toy()
    theirs = torch.optim.Adam([{"params": [net[0].weight, net[0].bias]}, {"params": list(net[1].parameters())}], lr=9.0)
    net(torch.randn(8, 4)).square().mean().backward()
    theirs.step()
    ours = build_optimizer(net, Optimization(lr=0.003, weight_decay=0.01))
    load_optimizer_state(ours, theirs.state_dict())
    assert all(g["weight_decay"] == 0.01 and g["lr"] == 0.003 for g in ours.param_groups)
    torch.testing.assert_close(ours.state[net[1].weight]["exp_avg"], theirs.state[net[1].weight]["exp_avg"])
    before = net[1].weight.detach().clone()
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    for moments in ours.state.values():
        moments["exp_avg"].zero_()
    ours.step()
    torch.testing.assert_close(net[1].weight.detach(), before * (1 - 0.003 * 0.01), rtol=1e-7, atol=0)


def test_a_state_of_other_parameters_is_refused():
    optimizer = build_optimizer(toy(), Optimization())
    with pytest.raises(ValueError, match="other parameters.*--pretrained_model"):
        load_optimizer_state(optimizer, build_optimizer(nn.Linear(2, 2), Optimization()).state_dict())
    wide = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7))
    other = build_optimizer(wide, Optimization())
    wide(torch.randn(4, 4)).sum().backward()
    other.step()
    with pytest.raises(ValueError, match=r"shape \(7, 4\) where the model's parameter has \(3, 4\)"):
        load_optimizer_state(optimizer, other.state_dict())
