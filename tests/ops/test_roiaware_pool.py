"""RoI-aware pooling: cells by hand, the cap of a cell, stacked scenes, gradients, recorded values."""

import numpy as np
import pytest
import torch
from ops_cases import box, generator, lidar_cloud, random_boxes

from pcdet.ops.roiaware_pool import cpu, dense_roi_cells, reference, roi_cells, roiaware_pool3d


def cloud(n=900, channels=3, spread=16.0):
    points = (torch.rand(n, 3, generator=generator()) - 0.5) * torch.tensor([spread, spread, 4])
    return points, torch.randn(n, channels, generator=generator(1))


def naive(rois, points, features, size, cap, method):
    """The definition, point after point, in float64; the points keep off the borders of cells."""
    out = torch.zeros(len(rois), *size, features.shape[1], dtype=torch.float64)
    for m, (x, y, z, dx, dy, dz, yaw) in enumerate(rois.double().tolist()):
        held = {}
        for n, (px, py, pz) in enumerate(points.double().tolist()):
            cos, sin = np.cos(yaw), np.sin(yaw)
            local = ((px - x) * cos + (py - y) * sin, (py - y) * cos - (px - x) * sin, pz - z)
            if all(abs(value) <= extent / 2 for value, extent in zip(local, (dx, dy, dz), strict=True)):
                place = tuple(
                    int((value / extent + 0.5) * number)
                    for value, extent, number in zip(local, (dx, dy, dz), size, strict=True)
                )
                held.setdefault(place, []).append(n)
        for place, rows in held.items():
            group = features[rows[: cap - 1]].double()
            out[(m, *place)] = group.amax(0) if method == "max" else group.mean(0)
    return out


def test_by_hand():
    points = torch.tensor([[-1.9, -0.9, -0.7], [1.9, 0.9, 0.7], [-1.8, -0.8, -0.6], [9, 0, 0]])
    features = torch.tensor([[1.0, -1], [2, -2], [3, -3], [4, -4]])
    pooled = roiaware_pool3d(box(), points, features, 2, 10, "max")
    assert pooled.shape == (1, 2, 2, 2, 2)
    assert pooled[0, 0, 0, 0].tolist() == [3, -1] and pooled[0, 1, 1, 1].tolist() == [2, -2]
    assert pooled.count_nonzero() == 4
    assert roiaware_pool3d(box(), points, features, 2, 10, "avg")[0, 0, 0, 0].tolist() == [2, -2]
    cells = roi_cells(box(), points, 2, 10)
    assert cells.cell.tolist() == [[0, 0, 0, 0], [0, 1, 1, 1]]
    assert cells.point.tolist() == [0, 2, 1] and cells.start.tolist() == [0, 2, 3]


def test_cells_follow_the_axes_of_the_box():
    """A box that faces left: its x is the scene's y."""
    points = torch.tensor([[-0.5, 1.9, 0.1], [0.5, 0.1, 0.1]])
    cells = roi_cells(box(heading=np.pi / 2), points, (4, 2, 1), 10)
    assert cells.cell.tolist() == [[0, 2, 0, 0], [0, 3, 1, 0]] and cells.point.tolist() == [1, 0]


@pytest.mark.parametrize("module", [cpu, reference])
def test_a_cell_keeps_its_first_points_one_less_than_the_maximum(module):
    points = torch.cat([torch.zeros(60, 3), torch.ones(2, 3) * 0.6])
    point, cell = module.assign(box(), points, [1], [62], (1, 1, 3), 4)
    assert point.tolist() == [0, 1, 2, 3, 60, 61] and cell.tolist() == [1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("method", ["max", "avg"])
@pytest.mark.parametrize("size, cap", [((3, 4, 2), 128), ((1, 2, 1), 6)])
def test_matches_the_definition(method, size, cap):
    points, features = cloud()
    rois = random_boxes(12, spread=6)
    pooled = roiaware_pool3d(rois, points, features, size, cap, method)
    assert torch.allclose(pooled.double(), naive(rois, points, features, size, cap, method), atol=1e-5)
    assert pooled.count_nonzero() > 50


@pytest.mark.parametrize("n", [900, 20_000])
def test_kernel_matches_reference(n):
    points = cloud(n)[0] if n < 1000 else lidar_cloud(n) - torch.tensor([25.0, 0, 0])
    points[::70] = torch.nan
    rois = random_boxes(40, spread=12)
    rois[:3, 3:6] = 0.0
    rois[3, 6] = torch.nan
    rois[4, 3:6] = 500.0
    points[1] = rois[0, :3]  # the only point that a box without extent holds
    found = cpu.assign(rois, points, [15, 0, 25], [n // 3, n // 5, n - n // 3 - n // 5], (5, 6, 7), 9)
    expected = reference.assign(rois, points, [15, 0, 25], [n // 3, n // 5, n - n // 3 - n // 5], (5, 6, 7), 9)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs) and len(ours) > 100


def test_stacked_scenes_are_pooled_apart():
    points, features = cloud()
    rois = torch.cat([random_boxes(4), random_boxes(5, seed=1)])
    counts = (torch.tensor([4, 5]), torch.tensor([300, 600]))
    stacked = roiaware_pool3d(rois, points, features, 3, 20, "max", *counts)
    first = roiaware_pool3d(rois[:4], points[:300], features[:300], 3, 20, "max")
    second = roiaware_pool3d(rois[4:], points[300:], features[300:], 3, 20, "max")
    assert torch.equal(stacked, torch.cat([first, second])) and stacked.any()


def test_sparse_cells_are_the_full_ones_that_hold_points():
    points, features = cloud()
    rois = random_boxes(10, spread=5)
    cells = roi_cells(rois, points, (4, 3, 2), 20)
    dense = roiaware_pool3d(rois, points, torch.ones(len(points), 1), (4, 3, 2), 20, "avg")
    assert torch.equal(cells.cell, dense[..., 0].nonzero())
    full = dense_roi_cells(cells.pool(features, "max"), cells.cell, 10, (4, 3, 2))
    assert torch.equal(full, roiaware_pool3d(rois, points, features, (4, 3, 2), 20, "max"))


@pytest.mark.parametrize("method", ["max", "avg"])
def test_gradients(method):
    points, features = cloud(80, spread=6.0)
    rois, features = random_boxes(4, spread=2), features.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda f: roiaware_pool3d(rois, points, f, 2, 5, method), (features,))


@pytest.mark.parametrize("n, m", [(0, 0), (0, 3), (4, 0)])
def test_empty_tensors(n, m):
    features = torch.ones(n, 2).requires_grad_()
    rois = random_boxes(m) + 90
    for method in ("max", "avg"):
        pooled = roiaware_pool3d(rois, torch.zeros(n, 3), features, 2, 5, method)
        assert pooled.shape == (m, 2, 2, 2, 2) and not pooled.any()
        pooled.sum().backward()
    for module in (cpu, reference):
        point, cell = module.assign(rois, torch.zeros(n, 3), [m, 0], [0, n], (2, 2, 2), 4)
        assert point.shape == cell.shape == (0,) and point.dtype == cell.dtype == torch.int64


def test_bad_arguments():
    points, features = cloud()
    rois = random_boxes(3)
    with pytest.raises(ValueError, match="max_points"):
        roi_cells(rois, points, 3, 1)
    with pytest.raises(ValueError, match="out_size"):
        roi_cells(rois, points, (3, 3), 9)
    with pytest.raises(ValueError, match="given together"):
        roi_cells(rois, points, 3, 9, torch.tensor([3]))
    with pytest.raises(ValueError, match="roi_counts add up to 2, but there are 3 rows"):
        roi_cells(rois, points, 3, 9, torch.tensor([2]), torch.tensor([900]))
    with pytest.raises(ValueError, match="name 2 scenes"):
        roi_cells(rois, points, 3, 9, torch.tensor([2, 1]), torch.tensor([900]))
    with pytest.raises(ValueError, match="900 points but 899 rows"):
        roiaware_pool3d(rois, points, features[1:], 3, 9, "max")
    with pytest.raises(ValueError, match="'max' or 'avg'"):
        roiaware_pool3d(rois, points, features, 3, 9, "mean")
    with pytest.raises(ValueError, match="rois"):
        roi_cells(rois[:, :6], points, 3, 9)


@pytest.mark.parametrize("method", ["max", "avg"])
@pytest.mark.parametrize("size, cap", [(4, 16), ((3, 2, 5), 128)])
def test_recorded_values(shared, method, size, cap):
    data = np.load(shared / "oracles" / "ops" / "roiaware_pool3d.npz")
    rois, points, features = (torch.from_numpy(data[f"in_{name}"]) for name in ("rois", "pts", "pts_feature"))
    features.requires_grad_()
    key = f"{method}_{str(size).replace(' ', '')}_{cap}"
    pooled = roiaware_pool3d(rois, points, features, size, cap, method)
    assert np.allclose(pooled.detach(), data[f"out_pooled_{key}"], rtol=0, atol=1e-6)
    pooled.backward(torch.arange(pooled.numel(), dtype=torch.float64).sin().float().view_as(pooled))
    assert np.allclose(features.grad, data[f"out_grad_{key}"], rtol=0, atol=2e-6)
