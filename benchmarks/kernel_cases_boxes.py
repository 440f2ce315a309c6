"""Calls of the box and voxel operators' Triton kernels at the models' sizes, for ``check_kernels.py``."""

from collections.abc import Callable

from op_inputs import boxes, lidar

import pcdet.ops.iou3d.triton as iou3d
import pcdet.ops.nms.triton as nms
import pcdet.ops.points_in_boxes.triton as points_in_boxes

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


CASES: list[Callable[[], object]] = [overlaps, suppression, membership]
