"""Every operator gives the same on a GPU as on the CPU."""

import pytest
import torch
from ops_cases import lattice, lidar_cloud, random_boxes

from pcdet.ops.ball_query import ball_query, ball_query_stack
from pcdet.ops.dynamic_voxels import dynamic_voxels
from pcdet.ops.furthest_point_sampling import (
    furthest_point_sample,
    furthest_point_sample_stack,
    sector_furthest_point_sample,
)
from pcdet.ops.grouping import group_points, group_rows
from pcdet.ops.iou3d import boxes_aligned_iou3d, boxes_iou3d, boxes_iou_bev
from pcdet.ops.nms import nms_bev, nms_normal_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index, points_in_boxes_mask
from pcdet.ops.roiaware_pool import roi_cells
from pcdet.ops.roipoint_pool import roipoint_pool3d
from pcdet.ops.row_grid import rows_to_grid
from pcdet.ops.scatter import segment_max, segment_mean
from pcdet.ops.three_nn import three_interpolate, three_nn_stack
from pcdet.ops.vector_pool import local_three_nn, voxel_pool
from pcdet.ops.voxel_query import voxel_query
from pcdet.ops.voxelize import voxelize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BOXES, CLOUD = random_boxes(150, spread=20), lidar_cloud(4000)
CLOUDS = torch.stack([CLOUD[:729], lattice(9)])
COUNTS, FEW = torch.tensor([1000, 3000]), torch.tensor([100, 300])
CELLS = torch.cat([torch.zeros(4000, 1), CLOUD.floor().flip(1) + 100], dim=1).long()  # of one metre
VOXELS = CELLS.unique(dim=0)
VOXEL_CENTRES = VOXELS[:, [3, 2, 1]] - 99.5
PAIR = BOXES.view(2, 75, 7)
SUPPORT, PLACES = torch.tensor([3000, 1000]), torch.tensor([50, 40])
CALLS = {
    "boxes_iou_bev": lambda d: boxes_iou_bev(BOXES.to(d), BOXES.to(d)),
    "boxes_aligned_iou3d": lambda d: boxes_aligned_iou3d(BOXES.to(d), BOXES.roll(1, 0).to(d)),
    "roi_cells": lambda d: roi_cells(BOXES.to(d), CLOUD.to(d), 4, 9),
    "roipoint_pool3d": lambda d: roipoint_pool3d(CLOUDS.to(d), CLOUDS.to(d), PAIR.to(d), 0.5, 8),
    "local_three_nn": lambda d: local_three_nn(
        CLOUD.to(d), SUPPORT.to(d), CLOUD[:90].to(d), CLOUD[:90, None].to(d) + 0.3, PLACES.to(d), 1.5
    ),
    "voxel_pool": lambda d: voxel_pool(
        CLOUD.to(d), SUPPORT.to(d), CLOUD.to(d), CLOUD[:90].to(d), PLACES.to(d), (3, 3, 3), 1.5
    ),
    "boxes_iou3d": lambda d: boxes_iou3d(BOXES.to(d), BOXES.to(d)),
    "nms_bev": lambda d: nms_bev(BOXES.to(d), BOXES[:, 3].to(d), 0.1, 120, 50),
    "nms_normal_bev": lambda d: nms_normal_bev(BOXES.to(d), BOXES[:, 3].to(d), 0.1),
    "nms of none": lambda d: nms_bev(BOXES[:0].to(d), BOXES[:0, 3].to(d), 0.1),
    "points_in_boxes_mask": lambda d: points_in_boxes_mask(CLOUD.to(d), BOXES.to(d)),
    "points_in_boxes_index": lambda d: points_in_boxes_index(CLOUD.to(d), BOXES.to(d)),
    "voxelize": lambda d: voxelize(CLOUD.to(d), [0, -40, -3, 70, 40, 1], [0.2, 0.2, 4], [350, 400, 1], 5, 2000),
    "furthest_point_sample": lambda d: furthest_point_sample(CLOUDS.to(d), 200),
    "furthest_point_sample_stack": lambda d: furthest_point_sample_stack(CLOUD.to(d), [1000, 3000], [50, 70]),
    "sector_furthest_point_sample": lambda d: sector_furthest_point_sample(CLOUD.to(d), 300, 6),
    "ball_query_stack": lambda d: ball_query_stack(CLOUD.to(d), COUNTS, CLOUD[:400].to(d), FEW.to(d), 0.8, 16),
    "three_nn_stack": lambda d: three_nn_stack(CLOUD.to(d), COUNTS, CLOUD[:400].to(d), FEW.to(d)),
    "voxel_query": lambda d: voxel_query(
        VOXELS.to(d), VOXEL_CENTRES.to(d), (200, 200, 200), 1, CLOUD.to(d), CELLS.to(d), (1, 2, 2), 1.2, 8
    ),
    "dynamic_voxels": lambda d: dynamic_voxels(
        torch.cat([torch.zeros(4000, 1), CLOUD], dim=1).to(d), [0.0, -40.0], [0.2, 0.2], [350, 400]
    ),
    "rows_to_grid": lambda d: rows_to_grid(
        VOXEL_CENTRES.to(d),
        VOXELS[:, 0].to(d),
        (VOXELS[:, 2] * 200 + VOXELS[:, 3] + VOXELS[:, 1] * 40_000).to(d),
        1,
        8_000_000,
    ),
    "ball_query": lambda d: ball_query(CLOUDS.to(d), CLOUDS[:, :90].to(d), 1.5, 16),
}


@pytest.mark.parametrize("name", CALLS)
def test_same_as_on_the_cpu(name):
    on_gpu, on_cpu = CALLS[name]("cuda"), CALLS[name]("cpu")
    if isinstance(on_cpu, torch.Tensor):
        on_gpu, on_cpu = (on_gpu,), (on_cpu,)
    for found, expected in zip(on_gpu, on_cpu, strict=True):
        assert found.device.type == "cuda" and found.dtype == expected.dtype
        assert torch.allclose(found.cpu(), expected, rtol=0, atol=1e-4 if expected.is_floating_point() else 0)


def test_grouping_and_its_gradient():
    index = ball_query(CLOUDS, CLOUDS[:, :90], 1.5, 16)[0]
    results = []
    for device in ("cpu", "cuda"):
        features = CLOUDS.to(device).requires_grad_()
        grouped = group_points(features, index.to(device))
        grouped.square().sum().backward()
        results.append((grouped.detach().cpu(), features.grad.cpu()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-4)


def test_rows_interpolation_and_their_gradients():
    distance, index = three_nn_stack(CLOUD, COUNTS, CLOUD[:400], FEW)
    results = []
    for device in ("cpu", "cuda"):
        rows, weight = CLOUD[:400].to(device).requires_grad_(), distance.to(device).requires_grad_()
        found = three_interpolate(rows, index.to(device), weight) + group_rows(rows, index.to(device)).sum(dim=1)
        found.square().sum().backward()
        results.append([value.cpu() for value in (found.detach(), rows.grad, weight.grad)])
    for on_cpu, on_gpu in zip(*results, strict=True):
        assert torch.allclose(on_cpu, on_gpu, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("pool", [segment_max, segment_mean])
def test_pooling_and_its_gradient(pool):
    results = []
    for device in ("cpu", "cuda"):
        features = CLOUD.to(device).requires_grad_()
        pooled = pool(features, (torch.arange(len(CLOUD)) * 7 % 900).to(device), 1000)
        pooled.square().sum().backward()
        results.append((pooled.detach().cpu(), features.grad.cpu()))
    for on_cpu, on_gpu in zip(*results, strict=True):
        assert torch.allclose(on_cpu, on_gpu, rtol=1e-4, atol=1e-5)


def test_b9_boxes_on_another_device_are_an_error():
    with pytest.raises(ValueError, match="one device"):
        points_in_boxes_mask(CLOUD.cuda(), BOXES)
