"""The Triton kernels of voxels, pooled groups and points of boxes' cells against the references and recorded values."""

import math

import numpy as np
import pytest
import torch
from ops_cases import box, generator, lidar_cloud, random_boxes

from pcdet.ops.roiaware_pool import roiaware_pool3d
from pcdet.ops.roipoint_pool import roipoint_pool3d
from pcdet.ops.scatter import segment_max, segment_mean
from pcdet.ops.voxelize import voxelize

NAN = float("nan")


def same(found, expected) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(a.cpu(), b) and a.dtype == b.dtype for a, b in pairs)


@pytest.mark.parametrize(
    "size, grid, points_kept, voxels_kept",
    [
        ([0.2, 0.2, 4.0], [350, 400, 1], 5, 2000),
        ([1.0, 1.0, 0.5], [70, 80, 8], 3, 100),  # more voxels than are kept
        ([8.0, 8.0, 4.0], [9, 10, 1], 32, 40),
        ([8.0, 8.0, 4.0], [9, 10, 1], 1, 1),
        ([0.001, 0.001, 0.001], [70000, 80000, 4000], 3, 1000),  # more cells than an int32 counts
    ],
)
def test_voxels(rooms, device, size, grid, points_kept, voxels_kept):
    kernels, reference = rooms("voxelize")
    points = torch.cat([lidar_cloud(500), torch.rand(500, 1, generator=generator())], dim=1)
    points[5, 0], points[7, 3], points[9, 1] = NAN, math.inf, -math.inf
    borders = torch.tensor([[0.0, -40, -3, 0], [70, 40, 1, 0], [69.99, 39.99, 0.99, 0], [0, -40, -3, 0]])
    points = torch.cat([points, borders])
    options = ([0.0, -40.0, -3.0], size, grid, points_kept, voxels_kept)
    assert same(kernels.voxelize(points.to(device), *options), reference.voxelize(points, *options))
    for few in (points[:0], points[:3] - 1000, points[:1]):
        assert same(kernels.voxelize(few.to(device), *options), reference.voxelize(few, *options))


@pytest.mark.parametrize("max_points, max_voxels", [(5, 1000), (2, 60), (32, 40)])
def test_recorded_voxels_on_the_kernel(shared, through_triton, max_points, max_voxels):
    data = np.load(shared / "oracles" / "ops" / "voxelize.npz")
    points = torch.from_numpy(data["in_points"]).to(through_triton)
    grid = ([0.0, 0.0, 0.0, 4.0, 4.0, 4.0], [0.5, 0.5, 1.0], [8, 8, 4])
    found = voxelize(points, *grid, max_points, max_voxels)
    for name, part in zip(("out_voxels", "out_coords_zyx", "out_num"), found, strict=True):
        assert np.array_equal(part.cpu(), data[f"{name}_{max_points}_{max_voxels}"])


@pytest.mark.parametrize("channels", [1, 5, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pooling_of_groups_that_share_rows(rooms, device, channels, dtype):
    kernels, reference = rooms("scatter")
    features = torch.randn(50, channels, generator=generator()).to(dtype).round(decimals=1)  # equal ones among them
    features[3] = -math.inf
    rows, start = torch.randint(0, 50, (90,), generator=generator()), torch.tensor([0, 0, 1, 30, 30, 60, 90, 90])
    on_device = (rows.to(device), start.to(device))
    largest, source = reference.pool_max(features, rows, start)
    assert same(kernels.pool_max(features.to(device), *on_device), (largest, source))
    features[3], features[4] = 1.0, NAN
    mean = kernels.pool_mean(features.to(device), *on_device).cpu()
    assert torch.allclose(mean, reference.pool_mean(features, rows, start), rtol=1e-5, atol=1e-6, equal_nan=True)
    found = kernels.pool_max(features.to(device), *on_device)[0].cpu()
    assert torch.equal(found.nan_to_num(9), reference.pool_max(features, rows, start)[0].nan_to_num(9))
    grad = torch.randn(7, channels, generator=generator(1)).to(dtype)
    sent = kernels.pool_max_backward(grad.to(device), source.to(device), *on_device, 50).cpu()
    assert torch.allclose(sent, reference.pool_max_backward(grad, source, rows, start, 50), rtol=1e-5, atol=1e-6)
    sent = kernels.pool_mean_backward(grad.to(device), *on_device, 50).cpu()
    assert torch.allclose(sent, reference.pool_mean_backward(grad, rows, start, 50), rtol=1e-5, atol=1e-6)


def test_no_member(rooms, device):
    kernels = rooms("scatter")[0]
    none, start = torch.zeros(0, dtype=torch.int64, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    pooled, source = kernels.pool_max(torch.ones(2, 3, device=device), none, start)
    assert not pooled.any() and source.unique().tolist() == [-1]
    assert not kernels.pool_mean(torch.ones(0, 3, device=device), none, start).any()
    assert not kernels.pool_mean_backward(torch.ones(2, 3, device=device), none, start, 4).any()


@pytest.mark.parametrize("pool", [segment_max, segment_mean])
def test_pooling_by_segment_through_the_door(through_triton, pool):
    features = torch.randn(40, 6, generator=generator())
    segment = torch.arange(40) * 7 % 11
    results = []
    for room in (through_triton, "meta"):
        given = features.to(through_triton).requires_grad_()
        if room == "meta":  # the definition, scatter by scatter
            shape, index = (13, 6), segment[:, None].expand(-1, 6).to(through_triton)
            how = "amax" if pool is segment_max else "mean"
            out = torch.zeros(shape, device=through_triton).scatter_reduce(0, index, given, how, include_self=False)
        else:
            out = pool(given, segment.to(through_triton), 13)
        out.square().sum().backward()
        results.append((out.detach(), given.grad))
    for found, expected in zip(*results, strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


ROIS = torch.cat([random_boxes(10, spread=8.0), box(dx=0.0), box(x=NAN), box()])
POINTS = torch.cat([lidar_cloud(300) * torch.tensor([0.2, 0.2, 1]), torch.zeros(20, 3), random_boxes(200)[:, :3]])


@pytest.mark.parametrize(
    "roi_counts, point_counts, size, kept",
    [
        ([13], [520], (2, 3, 4), 3),  # cells with more points than are kept
        ([4, 0, 9], [200, 0, 320], (6, 6, 6), 127),
        ([5, 8], [520, 0], (1, 1, 1), 9),  # boxes of a scene without points
    ],
)
def test_cells_of_boxes(rooms, device, roi_counts, point_counts, size, kept):
    kernels, reference = rooms("roiaware_pool")
    counts = torch.tensor(roi_counts), torch.tensor(point_counts)
    found = kernels.filled_cells(ROIS.to(device), POINTS.to(device), *(c.to(device) for c in counts), size, kept)
    assert same(found, reference.filled_cells(ROIS, POINTS, *counts, size, kept))


def test_cells_of_nothing(rooms, device):
    kernels, one = rooms("roiaware_pool")[0], torch.ones(1, dtype=torch.int64, device=device)
    for rois, points in ((ROIS[:0], POINTS), (ROIS, POINTS[:0]), (ROIS[:1], POINTS[:5] + 500)):
        counts = len(rois) * one, len(points) * one
        point, start, cell = kernels.filled_cells(rois.to(device), points.to(device), *counts, (2, 2, 2), 4)
        assert len(point) == 0 and start.tolist() == [0] and len(cell) == 0


@pytest.mark.parametrize("method", ["max", "avg"])
def test_pooling_over_cells_and_its_gradient(through_triton, method):
    features = torch.randn(len(POINTS), 7, generator=generator())
    results = []
    for device in (through_triton, "cpu"):
        given = features.to(device).requires_grad_()
        pooled = roiaware_pool3d(ROIS[:10].to(device), POINTS.to(device), given, 3, 9, method)
        pooled.square().sum().backward()
        results.append((pooled.detach().cpu(), given.grad.cpu()))
    for found, expected in zip(*results, strict=True):
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("wanted", [1, 7, 600])
def test_first_points_of_boxes(rooms, device, wanted):
    kernels, reference = rooms("roipoint_pool")
    boxes, clouds = ROIS[:12].view(2, 6, 7), POINTS.view(2, 260, 3)
    assert same(kernels.query(clouds.to(device), boxes.to(device), wanted), reference.query(clouds, boxes, wanted))
    for points, rois in ((clouds[:, :0], boxes), (clouds, boxes[:, :0])):
        found = kernels.query(points.to(device), rois.to(device), wanted)
        assert same(found, reference.query(points, rois, wanted))


@pytest.mark.parametrize("method", ["max", "avg"])
def test_recorded_pools_of_cells(shared, through_triton, method):
    data = np.load(shared / "oracles" / "ops" / "roiaware_pool3d.npz")
    names = ("rois", "pts", "pts_feature")
    rois, points, features = (torch.from_numpy(data[f"in_{name}"]).to(through_triton) for name in names)
    features.requires_grad_()
    pooled = roiaware_pool3d(rois, points, features, 4, 16, method)
    assert np.allclose(pooled.detach().cpu(), data[f"out_pooled_{method}_4_16"], rtol=0, atol=1e-6)
    weight = torch.arange(pooled.numel(), dtype=torch.float64).sin().float().view_as(pooled)
    pooled.backward(weight.to(through_triton))
    assert np.allclose(features.grad.cpu(), data[f"out_grad_{method}_4_16"], rtol=0, atol=2e-6)


def test_recorded_points_of_boxes(shared, through_triton):
    data = np.load(shared / "oracles" / "ops" / "roipoint_pool3d.npz")
    names = ("points", "point_features", "boxes3d")
    inputs = (torch.from_numpy(data[f"in_{name}"]).to(through_triton) for name in names)
    pooled, empty = roipoint_pool3d(*inputs, (1.0, 1.0, 1.0), 32)
    assert np.array_equal(empty.cpu(), data["out_empty_1.0_1.0_1.0_32"].astype(bool))
    assert np.array_equal(pooled.cpu(), data["out_pooled_1.0_1.0_1.0_32"])
