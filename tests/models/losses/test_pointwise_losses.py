import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pcdet.models.losses.pointwise import sigmoid_focal_loss, sine_difference, smooth_l1_loss


def test_focal_loss_by_hand():
    """Logit log 3 is the probability 0.75."""
    logits = torch.tensor([math.log(3), math.log(3)])
    loss = sigmoid_focal_loss(logits, torch.tensor([1.0, 0.0]))
    hit = 0.25 * 0.25**2 * -math.log(0.75)
    miss = 0.75 * 0.75**2 * -math.log(0.25)
    torch.testing.assert_close(loss, torch.tensor([hit, miss]))


def test_focal_loss_of_certain_logits_is_finite():
    logits = torch.tensor([100.0, -100.0, 100.0, -100.0], requires_grad=True)
    loss = sigmoid_focal_loss(logits, torch.tensor([1.0, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(loss, torch.tensor([0.0, 0.0, 75.0, 25.0]))
    loss.sum().backward()
    assert logits.grad.isfinite().all()


def test_smooth_l1_by_hand():
    """Below beta = 1/9 it is 4.5 d^2, above it d - 1/18; the code's weight scales the difference."""
    found = smooth_l1_loss(torch.tensor([[0.1, 1.0, -1.0, 5.0]]), torch.zeros(1, 4), torch.tensor([1.0, 1, 2, 0]))
    torch.testing.assert_close(found, torch.tensor([[0.045, 1 - 1 / 18, 2 - 1 / 18, 0]]))


def test_smooth_l1_ignores_targets_that_are_no_numbers():
    codes = torch.ones(1, 2, requires_grad=True)
    loss = smooth_l1_loss(codes, torch.tensor([[float("nan"), 0.0]]), torch.ones(2))
    loss.sum().backward()
    assert loss[0, 0] == 0
    assert codes.grad.tolist() == [[0.0, 1.0]]


def test_half_a_turn_costs_nothing():
    codes, targets = torch.zeros(1, 8), torch.zeros(1, 8)
    codes[0, 6], targets[0, 6], codes[0, 7] = 0.3 + math.pi, 0.3, 5.0
    a, b = sine_difference(codes, targets)
    assert (a - b)[0, 6].abs() < 1e-6
    assert torch.equal(a[:, [0, 1, 2, 3, 4, 5, 7]], codes[:, [0, 1, 2, 3, 4, 5, 7]])
    targets[0, 6] = 0.1
    a, b = sine_difference(codes, targets)
    assert (a - b)[0, 6].item() == pytest.approx(math.sin(0.2 + math.pi), abs=1e-6)


def test_recorded_losses(shared):
    record = {k: torch.from_numpy(v) for k, v in np.load(shared / "oracles/ops/losses.npz").items()}
    weights = record["in_weights"].unsqueeze(2)

    logits = record["in_cls_logits"].requires_grad_()
    focal = sigmoid_focal_loss(logits, record["in_onehot"]) * weights
    torch.testing.assert_close(focal, record["out_focal"], rtol=1e-4, atol=1e-6)
    focal.sum().backward()
    torch.testing.assert_close(logits.grad, record["out_focal_grad"], rtol=1e-4, atol=1e-6)

    codes, code_weights = record["in_reg"].requires_grad_(), record["in_code_weights"].float()
    smooth = smooth_l1_loss(codes, record["in_reg_target"], code_weights) * weights
    torch.testing.assert_close(smooth, record["out_smooth_l1"], rtol=1e-4, atol=1e-6)
    smooth.sum().backward()
    torch.testing.assert_close(codes.grad, record["out_smooth_l1_grad"], rtol=1e-4, atol=1e-6)
    plain = smooth_l1_loss(codes, record["in_reg_target"], code_weights, beta=0.0) * weights
    torch.testing.assert_close(plain, record["out_l1"], rtol=1e-4, atol=1e-6)

    bins = record["in_dir_target"].argmax(2).flatten()
    direction = F.cross_entropy(record["in_dir_logits"].flatten(0, 1), bins, reduction="none")
    torch.testing.assert_close(direction * weights.flatten(), record["out_weighted_ce"].flatten(), rtol=1e-4, atol=1e-6)
