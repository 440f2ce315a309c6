"""Corner loss: hand arithmetic, either facing, gradients at zero, recorded values."""

import math

import numpy as np
import pytest
import torch

from pcdet.models.losses.corners import corner_loss

BOX = torch.tensor([[1.0, 2.0, 3.0, 4.0, 2.0, 1.5, 0.3]])


@pytest.mark.parametrize("shift, wanted", [(0.0, 0.0), (0.4, 0.08), (3.0, 2.5)])
def test_a_shift_moves_every_corner(shift, wanted):
    moved = BOX + torch.tensor([0, 0, shift, 0, 0, 0, 0])
    assert corner_loss(moved, BOX).item() == pytest.approx(wanted, abs=1e-6)  # d^2 / 2 below 1 m, d - 1 / 2 above


def test_a_box_that_faces_the_other_way_costs_nothing():
    assert corner_loss(BOX + torch.tensor([0, 0, 0, 0, 0, 0, math.pi]), BOX).item() == pytest.approx(0, abs=1e-6)


def test_equal_boxes_have_finite_gradients():
    boxes = BOX.clone().requires_grad_()
    corner_loss(boxes, BOX).sum().backward()
    assert boxes.grad.isfinite().all()
    assert corner_loss(BOX[:0], BOX[:0]).shape == (0,)


def test_recorded_values(shared):
    data = np.load(shared / "oracles/ops/losses.npz")
    boxes = torch.from_numpy(data["in_corner_pred"]).requires_grad_()
    loss = corner_loss(boxes, torch.from_numpy(data["in_corner_gt"]))
    np.testing.assert_allclose(loss.detach(), data["out_corner"], rtol=1e-5, atol=1e-6)
    loss.sum().backward()
    np.testing.assert_allclose(boxes.grad, data["out_corner_grad"], rtol=1e-4, atol=1e-5)
