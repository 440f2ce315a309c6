"""Calls of the point operators' Triton kernels at the models' sizes, for ``check_kernels.py``.

Triton compiles once more for numbers that are no multiple of 16: widths of 20 stand for those that users set.
"""

from collections.abc import Callable

import torch
from op_inputs import lidar, shapes

import pcdet.ops.ball_query.triton as ball_query
import pcdet.ops.furthest_point_sampling.triton as sampling
import pcdet.ops.grouping.triton as grouping
import pcdet.ops.row_batch_norm.triton as row_batch_norm
import pcdet.ops.three_nn.triton as three_nn
import pcdet.ops.vector_pool.triton as vector_pool
import pcdet.ops.voxel_query.triton as voxel_query

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
    for neighbours in (16, 32, 64, 128, 20):  # PointNet++ SSG and MSG, PointRCNN
        ball_query.query(clouds, clouds[:, :512], 0.2, neighbours)


def sampling_of_scenes() -> None:
    for count in (SCENE, 60_000, 180_000):  # KITTI's front view, its whole turn, Waymo
        sampling.sample_stack(torch.zeros(2 * count, 3), [count, count], [KEYPOINTS, KEYPOINTS])


def sampling_of_clouds() -> None:
    for n in (16_384, 8192, 4096, 2048, 1024, 512, 256, 128):  # PointRCNN's four levels, PointNet++, sectors
        sampling.sample_batch(torch.zeros(2, n, 3), n // 4)
        sampling.sample_stack(torch.zeros(2 * n, 3), [n, n], [n // 4, n // 4])


def gradients_of_groups() -> None:
    for channels in (3, 16, 20, 32, 64, 128, 512):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            grouping.sum_rows(torch.zeros(5120, channels, dtype=dtype), torch.arange(5120) % 512, 512)


def interpolation_of_point_rcnn() -> None:
    unknown, known = torch.zeros(2 * 4096, 3), torch.zeros(2 * 1024, 3)
    _, index = three_nn.three_nn_stack(unknown, per_scene(4096), known, per_scene(1024))
    weight = torch.ones(index.shape)
    for channels in (128, 256, 512, 20):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            three_nn.interpolate(torch.zeros(2048, channels, dtype=dtype), index, weight)
            index.zero_()
            three_nn.spread(torch.zeros(len(index), channels, dtype=dtype), index, weight, 2048)


def voxel_query_of_voxel_rcnn() -> None:
    coords, places = torch.zeros(1, 4, dtype=torch.int64), torch.zeros(2 * ROI_GRID, 4, dtype=torch.int64)
    at = torch.zeros(2 * ROI_GRID, 3)
    for grid in ([2, 11, 400, 352], [2, 41, 4000, 4000]):  # a level of KITTI's grid, and one too large for a table
        for neighbours in (16, 20):
            voxel_query.query(coords, at[:1], grid, at, places, [4, 4, 4], 1.6, neighbours)


def vector_pools_of_pv_rcnn_plusplus() -> None:
    scenes = (CLOUD, per_scene(SCENE), PLACES[: 2 * KEYPOINTS], per_scene(KEYPOINTS))
    for cells in (2**3, 3**3):
        vector_pool.three_nn(*scenes, torch.zeros(2 * KEYPOINTS, cells, 3), 0.8, 1000, False)
    vector_pool.first_members(*scenes, (3, 3, 3), 0.8, 32, False)
    vector_pool.all_members(*scenes, (3, 3, 3), 0.8, -1, False)


def norms_of_neighbours() -> None:
    for channels in (16, 32, 64, 128, 20):
        rows, repeats, column = torch.zeros(4800, channels), torch.ones(4800), torch.ones(channels)
        for relu in (True, False):
            row_batch_norm.normalize(rows, repeats, column, column, 1e-5, relu)
            row_batch_norm.normalize_backward(rows, rows, repeats, *[column] * 4, 1e-5, relu)


CASES: list[Callable[[], object]] = [
    ball_query_of_pv_rcnn,
    ball_query_of_point_nets,
    sampling_of_scenes,
    sampling_of_clouds,
    gradients_of_groups,
    interpolation_of_point_rcnn,
    voxel_query_of_voxel_rcnn,
    vector_pools_of_pv_rcnn_plusplus,
    norms_of_neighbours,
]
