"""Calls of the point operators' Triton kernels at the models' sizes, for ``check_kernels.py``."""

from collections.abc import Callable

import torch
from op_inputs import lidar, shapes

import pcdet.ops.ball_query.triton as ball_query
import pcdet.ops.furthest_point_sampling.triton as sampling

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


def sampling_of_scenes() -> None:
    for count in (SCENE, 60_000, 180_000):  # KITTI's front view, its whole turn, Waymo
        sampling.sample_stack(torch.zeros(2 * count, 3), [count, count], [KEYPOINTS, KEYPOINTS])


def sampling_of_clouds() -> None:
    for n in (16_384, 8192, 4096, 2048, 1024, 512, 256, 128):  # PointRCNN's four levels, PointNet++, sectors
        sampling.sample_batch(torch.zeros(2, n, 3), n // 4)
        sampling.sample_stack(torch.zeros(2 * n, 3), [n, n], [n // 4, n // 4])


CASES: list[Callable[[], object]] = [
    ball_query_of_pv_rcnn,
    ball_query_of_point_nets,
    sampling_of_scenes,
    sampling_of_clouds,
]
