"""Calls of the box and voxel operators' Triton kernels at the models' sizes, for ``check_kernels.py``."""

from collections.abc import Callable

import torch
from op_inputs import KITTI_PILLARS, KITTI_VOXELS, boxes, lidar

import pcdet.ops.iou3d.triton as iou3d
import pcdet.ops.nms.triton as nms
import pcdet.ops.points_in_boxes.triton as points_in_boxes
import pcdet.ops.roiaware_pool.triton as roiaware_pool
import pcdet.ops.roipoint_pool.triton as roipoint_pool
import pcdet.ops.row_grid.triton as row_grid
import pcdet.ops.scatter.triton as scatter
import pcdet.ops.voxelize.triton as voxelize

PROPOSALS, OBJECTS = boxes(512), boxes(50)


def overlaps() -> None:
    """Proposals against objects (targets, recall), rows of boxes (the centre head's IoU branch, the metric)."""
    iou3d.boxes_iou3d(PROPOSALS, OBJECTS)
    iou3d.boxes_iou_bev(PROPOSALS, OBJECTS)
    iou3d.boxes_overlap_bev(PROPOSALS, OBJECTS)
    iou3d.boxes_overlap_published(PROPOSALS, OBJECTS)
    iou3d.boxes_aligned_iou3d(PROPOSALS, PROPOSALS)
    iou3d.boxes_aligned_overlap_bev(PROPOSALS.double(), PROPOSALS.double())


def suppression() -> None:
    for count, limit in ((1024, 100), (4096, 500), (9000, 512)):  # test proposals, detections, training proposals
        nms.greedy(boxes(count), 0.1, limit)
        nms.greedy_normal(boxes(count), 0.1, limit)


def membership() -> None:
    cloud = lidar(16_384)
    for points in (cloud, cloud[:, :3].contiguous()):
        points_in_boxes.index(points, OBJECTS, 1e-5)
        points_in_boxes.mask(points, OBJECTS, 1e-5)


def voxels() -> None:
    cloud = lidar(18_000)
    for (low, size, cells), points, most in ((KITTI_VOXELS, 5, 16_000), (KITTI_PILLARS, 32, 16_000)):
        voxelize.voxelize(cloud, low[:3], size, cells, points, most)


def pooled_groups() -> None:
    """The widths of dynamic encoders, PV-RCNN's set abstraction and Part-A2's cells."""
    rows, start = torch.arange(60_000) % 20_000, torch.arange(0, 60_001, 3)
    for channels in (16, 32, 64, 128, 20):
        features, sent = torch.zeros(20_000, channels), torch.zeros(20_000, channels)
        source = scatter.pool_max(features, rows, start)[1]
        scatter.pool_max_backward(sent, source, rows, start, len(features))
        scatter.pool_mean(features, rows, start)
        scatter.pool_mean_backward(sent, rows, start, len(features))
    scatter.pool_mean(torch.zeros(20_000, 4), rows, start)  # a voxel's points


def boxes_of_second_stages() -> None:
    """Part-A2's cells and PointRCNN's points, 128 boxes in each of two scenes."""
    points, per_scene = lidar(32_000)[:, :3].contiguous(), torch.tensor([128, 128])
    roiaware_pool.filled_cells(PROPOSALS[:256], points, per_scene, torch.tensor([16_000, 16_000]), (12, 12, 12), 127)
    roipoint_pool.query(points[: 2 * 16_384].view(2, -1, 3), PROPOSALS[:256].view(2, 128, 7), 512)


def dense_maps() -> None:
    """Pillars, and the height compression of the sparse backbones, forward and backward; half precision as well."""
    scene = torch.arange(2).repeat_interleave(5000)
    for cells, channels in ((432 * 496, 64), (2 * 200 * 176, 128), (200 * 176, 256), (200 * 176, 20)):
        cell = torch.arange(5000).repeat(2) * 7
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            grid = row_grid.rows_to_grid(torch.zeros(10_000, channels, dtype=dtype), scene, cell, 2, cells)
            row_grid.grid_to_rows(grid, scene, cell)


CASES: list[Callable[[], object]] = [
    overlaps,
    suppression,
    membership,
    voxels,
    pooled_groups,
    boxes_of_second_stages,
    dense_maps,
]
