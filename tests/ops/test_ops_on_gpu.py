"""Every operator gives the same on a GPU as on the CPU."""

import pytest
import torch
from ops_cases import lattice, lidar_cloud, random_boxes

from pcdet.ops.ball_query import ball_query
from pcdet.ops.furthest_point_sampling import furthest_point_sample, furthest_point_sample_stack
from pcdet.ops.grouping import group_points
from pcdet.ops.iou3d import boxes_iou3d, boxes_iou_bev
from pcdet.ops.nms import nms_bev, nms_normal_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index, points_in_boxes_mask
from pcdet.ops.voxelize import voxelize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BOXES, CLOUD = random_boxes(150, spread=20), lidar_cloud(4000)
CLOUDS = torch.stack([CLOUD[:729], lattice(9)])
CALLS = {
    "boxes_iou_bev": lambda d: boxes_iou_bev(BOXES.to(d), BOXES.to(d)),
    "boxes_iou3d": lambda d: boxes_iou3d(BOXES.to(d), BOXES.to(d)),
    "nms_bev": lambda d: nms_bev(BOXES.to(d), BOXES[:, 3].to(d), 0.1, 120, 50),
    "nms_normal_bev": lambda d: nms_normal_bev(BOXES.to(d), BOXES[:, 3].to(d), 0.1),
    "nms of none": lambda d: nms_bev(BOXES[:0].to(d), BOXES[:0, 3].to(d), 0.1),
    "points_in_boxes_mask": lambda d: points_in_boxes_mask(CLOUD.to(d), BOXES.to(d)),
    "points_in_boxes_index": lambda d: points_in_boxes_index(CLOUD.to(d), BOXES.to(d)),
    "voxelize": lambda d: voxelize(CLOUD.to(d), [0, -40, -3, 70, 40, 1], [0.2, 0.2, 4], [350, 400, 1], 5, 2000),
    "furthest_point_sample": lambda d: furthest_point_sample(CLOUDS.to(d), 200),
    "furthest_point_sample_stack": lambda d: furthest_point_sample_stack(CLOUD.to(d), [1000, 3000], [50, 70]),
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


def test_b9_boxes_on_another_device_are_an_error():
    with pytest.raises(ValueError, match="one device"):
        points_in_boxes_mask(CLOUD.cuda(), BOXES)
