"""Calls of the point operators' Triton kernels at the models' sizes, for ``check_kernels.py``."""

from collections.abc import Callable

import torch
from op_inputs import lidar, shapes

import pcdet.ops.ball_query.triton as ball_query

SCENE, KEYPOINTS = 18_000, 2048  # of KITTI's front view, and those of PV-RCNN
ROI_GRID = 128 * 6**3
CLOUD = torch.cat([lidar(SCENE), lidar(SCENE)])[:, :3].contiguous()  # of two scenes
PLACES = CLOUD[: 2 * ROI_GRID // 6].repeat(6, 1)


def per_scene(count: int) -> torch.Tensor:
    return torch.tensor([count, count])


def ball_query_of_pv_rcnn() -> None:
    for n, centres in ((SCENE, KEYPOINTS), (KEYPOINTS, ROI_GRID)):
        ball_query.query_stack(CLOUD[: 2 * n], per_scene(n), PLACES[: 2 * centres], per_scene(centres), 0.8, 16)


def ball_query_of_point_nets() -> None:
    clouds = shapes(16, 1024)
    for neighbours in (16, 32, 64, 128):  # PointNet++ SSG and MSG, PointRCNN
        ball_query.query(clouds, clouds[:, :512], 0.2, neighbours)


CASES: list[Callable[[], object]] = [ball_query_of_pv_rcnn, ball_query_of_point_nets]
