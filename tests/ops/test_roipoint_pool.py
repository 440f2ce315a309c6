"""Points of boxes with their features: order, repetition, empty boxes, gradient, recorded values."""

import numpy as np
import pytest
import torch
from ops_cases import box, generator, lidar_cloud, random_boxes

from pcdet.ops.roipoint_pool import cpu, reference, roipoint_pool3d


def scenes(batch=2, n=900, m=20, channels=3):
    points = (torch.rand(batch, n, 3, generator=generator()) - 0.5) * torch.tensor([16.0, 16, 4])
    boxes = torch.stack([random_boxes(m, seed=b, spread=7) for b in range(batch)])
    return points, torch.randn(batch, n, channels, generator=generator(1)), boxes


def test_by_hand():
    points = torch.tensor([[[9.0, 0, 0], [1.0, 0, 0], [0, 0.5, 0], [2.2, 0, 0], [0, 0, 0]]])
    features = torch.arange(5.0).view(1, 5, 1)
    boxes = torch.cat([box(), box(x=50)])[None]
    pooled, empty = roipoint_pool3d(points, features, boxes, 0.0, 4)
    assert pooled[0, 0].tolist() == [[1, 0, 0, 1], [0, 0.5, 0, 2], [0, 0, 0, 4], [1, 0, 0, 1]]
    assert empty.tolist() == [[False, True]] and not pooled[0, 1].any()
    assert roipoint_pool3d(points, features, boxes, 0.0, 2)[0][0, 0, :, 3].tolist() == [1, 2]


def test_half_of_the_extra_width_goes_to_each_side():
    points = torch.tensor([[[2.2, 0, 0], [0, 1.2, 0], [0, 0, 0.9]]])
    for width, found in ((0.2, []), ([0.5, 0, 0], [0]), ([0, 0.5, 0], [1]), ([0.0, 0, 0.5], [2]), (0.5, [0, 1, 2])):
        pooled, empty = roipoint_pool3d(points, torch.arange(3.0).view(1, 3, 1), box()[None], width, 3)
        assert empty.item() == (not found)
        assert pooled[0, 0, : len(found), 3].tolist() == found


@pytest.mark.parametrize("num_samples", [1, 7, 300])
def test_kernel_matches_reference(num_samples):
    points, _, boxes = scenes()
    points[0, ::50] = torch.nan
    boxes[1, :3, 3:6] = 0.0
    boxes[1, 3, 6] = torch.nan
    boxes[1, 4, 3:6] = 500.0
    for found, expected in zip(
        cpu.query(points, boxes, num_samples), reference.query(points, boxes, num_samples), strict=True
    ):
        assert torch.equal(found, expected)
        assert found.any() and not found.all()


def test_a_dense_cloud():
    points, boxes = lidar_cloud(20_000)[None], random_boxes(30, spread=30)[None] + torch.tensor([30.0] + [0.0] * 6)
    found, expected = cpu.query(points, boxes, 64), reference.query(points, boxes, 64)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1]) and not found[1].all()


def test_the_gradient_goes_to_the_points_that_filled_a_place():
    points = torch.tensor([[[0.0, 0, 0], [9.0, 0, 0], [1.0, 0, 0]]], dtype=torch.float64)
    features = torch.zeros(1, 3, 2, dtype=torch.float64).requires_grad_()
    roipoint_pool3d(points, features, torch.cat([box(), box(x=90)])[None], 0.0, 5)[0].sum().backward()
    assert features.grad[0].tolist() == [[3, 3], [0, 0], [2, 2]]
    boxes = scenes()[2][:, :3]
    points, features, _ = scenes(n=60)
    assert torch.autograd.gradcheck(
        lambda f: roipoint_pool3d(points.double(), f, boxes, 2.0, 6)[0], (features.double().requires_grad_(),)
    )


@pytest.mark.parametrize("batch, n, m", [(0, 5, 2), (2, 0, 3), (2, 5, 0)])
def test_empty_tensors(batch, n, m):
    points, boxes = torch.zeros(batch, n, 3), torch.ones(batch, m, 7) + 9
    pooled, empty = roipoint_pool3d(points, torch.zeros(batch, n, 2), boxes, 1.0, 4)
    assert pooled.shape == (batch, m, 4, 5) and not pooled.any() and empty.shape == (batch, m) and empty.all()
    for found, expected in zip(cpu.query(points, boxes, 4), reference.query(points, boxes, 4), strict=True):
        assert torch.equal(found, expected)


def test_bad_arguments():
    points, features, boxes = scenes()
    with pytest.raises(ValueError, match="num_samples"):
        roipoint_pool3d(points, features, boxes, 1.0, 0)
    with pytest.raises(ValueError, match="extra_width"):
        roipoint_pool3d(points, features, boxes, [1.0, 1.0], 4)
    with pytest.raises(ValueError, match="agree in B and N"):
        roipoint_pool3d(points, features[:, 1:], boxes, 1.0, 4)
    with pytest.raises(ValueError, match="boxes"):
        roipoint_pool3d(points, features, boxes[:1], 1.0, 4)
    with pytest.raises(ValueError, match=r"boxes must have the shape \(B, M, 7\+\)"):
        roipoint_pool3d(points, features, boxes[..., :6], 1.0, 4)


@pytest.mark.parametrize("width, wanted", [((0.0, 0.0, 0.0), 64), ((1.0, 1.0, 1.0), 32), ((0.2, 0.4, 0.6), 700)])
def test_recorded_points(shared, width, wanted):
    data = np.load(shared / "oracles" / "ops" / "roipoint_pool3d.npz")
    inputs = (torch.from_numpy(data[f"in_{name}"]) for name in ("points", "point_features", "boxes3d"))
    pooled, empty = roipoint_pool3d(*inputs, width, wanted)
    key = "_".join(map(str, (*width, wanted)))
    assert np.array_equal(empty, data[f"out_empty_{key}"].astype(bool))
    if f"out_pooled_{key}" in data:
        assert np.array_equal(pooled, data[f"out_pooled_{key}"])
    else:
        assert np.allclose(pooled.double().sum(dim=2), data[f"out_sum_{key}"], atol=1e-9)
        assert np.array_equal(pooled[:, :, -1], data[f"out_last_{key}"])
