import math

import numpy as np
import pytest
import torch

from pcdet.models.dense_heads.centers import rows_at
from pcdet.models.losses.heatmap import heatmap_focal_loss, mean_code_error
from pcdet.models.losses.overlap import distance_iou


def test_focal_loss_by_hand():
    """A centre, a cell near it and one far away; over one centre."""
    heat, target = torch.tensor([0.8, 0.3, 0.1]), torch.tensor([1.0, 0.6, 0.0])
    expected = -(0.2**2 * math.log(0.8) + 0.4**4 * 0.3**2 * math.log(0.7) + 0.1**2 * math.log(0.9))
    shape = (1, 1, 1, 3)
    assert heatmap_focal_loss(heat.view(shape), target.view(shape)).item() == pytest.approx(expected, rel=1e-5)


def test_focal_loss_is_over_the_centres_or_else_the_sum():
    heat, target = torch.full((1, 1, 2, 2), 0.25), torch.zeros(1, 1, 2, 2)
    background = -(0.25**2) * math.log(0.75)
    assert heatmap_focal_loss(heat, target).item() == pytest.approx(4 * background, rel=1e-5)
    target[0, 0, 0] = 1.0
    hit = -(0.75**2) * math.log(0.25)
    assert heatmap_focal_loss(heat, target).item() == pytest.approx((2 * hit + 2 * background) / 2, rel=1e-5)


def test_recorded_focal_loss(shared):
    record = np.load(shared / "oracles/ops/losses.npz")
    heat, target = torch.from_numpy(record["in_hm"]).requires_grad_(), torch.from_numpy(record["in_hm_target"])
    loss = heatmap_focal_loss(heat, target)
    assert loss.item() == pytest.approx(float(record["out_hm_focal"]), rel=1e-5)
    loss.backward()
    np.testing.assert_allclose(heat.grad, record["out_hm_focal_grad"], rtol=1e-4, atol=1e-6)
    without = heatmap_focal_loss(heat.detach(), target.clamp(max=0.99))
    assert without.item() == pytest.approx(float(record["out_hm_focal_nopos"]), rel=1e-5)


def test_code_errors_by_hand():
    """The third row does not count, whatever it holds."""
    codes = torch.tensor([[[1.0, 2.0], [3.0, 5.0], [math.inf, 7.0]]], requires_grad=True)
    targets = torch.tensor([[[0.0, math.nan], [5.0, 4.0], [math.nan, 0.0]]])
    error = mean_code_error(codes, targets, torch.tensor([[True, True, False]]))
    assert error.tolist() == [1.5, 0.5]
    error.sum().backward()
    assert codes.grad.tolist() == [[[0.5, 0.0], [-0.5, 0.5], [0.0, 0.0]]]


@pytest.mark.parametrize("rows", [0, 2])
def test_no_rows_have_no_error_and_are_still_connected(rows):
    codes = torch.ones(1, rows, 3, requires_grad=True)
    error = mean_code_error(codes, torch.zeros(1, rows, 3), torch.zeros(1, rows, dtype=torch.bool))
    assert error.tolist() == [0.0, 0.0, 0.0]
    error.sum().backward()
    assert codes.grad is not None and not codes.grad.any()


def test_recorded_code_errors(shared):
    """One target is not a number, which in OpenPCDet makes that code's error one that is none either."""
    record = np.load(shared / "oracles/ops/losses.npz")
    maps = torch.from_numpy(record["in_reg_map"]).requires_grad_()
    rows = rows_at(maps, torch.from_numpy(record["in_ind"]))
    error = mean_code_error(rows, torch.from_numpy(record["in_target"]), torch.from_numpy(record["in_mask"]) > 0)
    known = ~np.isnan(record["out_reg_centernet"])
    assert known.sum() == 7 and torch.isfinite(error).all()
    np.testing.assert_allclose(error.detach()[known], record["out_reg_centernet"][known], rtol=1e-5)
    error.sum().backward()
    np.testing.assert_allclose(maps.grad, record["out_reg_centernet_grad"], atol=1e-6)


def boxes(*rows):
    return torch.tensor([[*row, 0.7] for row in rows], dtype=torch.float32)


@pytest.mark.parametrize(
    "shift, expected",
    [
        ((0.0, 0.0, 0.0), 1.0),
        ((1.0, 0.0, 0.0), 1 / 3 - 1 / (9 + 4 + 4)),
        ((2.0, 0.0, 0.0), -4 / (16 + 4 + 4)),
        ((0.0, 1.0, 1.0), 2 / 14 - 2 / (4 + 9 + 9)),
    ],
)
def test_distance_iou_of_two_cubes(shift, expected):
    a = boxes((0, 0, 0, 2, 2, 2))
    b = boxes((*shift, 2, 2, 2))
    assert distance_iou(a, b).item() == pytest.approx(expected, abs=1e-6)
    assert distance_iou(b, a).item() == pytest.approx(expected, abs=1e-6)


def test_distance_iou_has_its_gradient():
    draw = torch.Generator().manual_seed(0)
    a = torch.rand(6, 7, generator=draw, dtype=torch.float64) + 0.5
    b = (a + 0.3 * torch.rand(6, 7, generator=draw, dtype=torch.float64)).detach()
    assert torch.autograd.gradcheck(lambda x: distance_iou(x, b), a.requires_grad_())
    assert distance_iou(torch.zeros(0, 7), torch.zeros(0, 7)).shape == (0,)
