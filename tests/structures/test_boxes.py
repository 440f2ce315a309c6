"""Box conventions: corners, angles, and the converters to and from KITTI's camera frame."""

import math

import numpy as np
import pytest
import torch

from pcdet.structures.boxes import (
    box_corners,
    boxes_from_kitti_camera,
    boxes_to_kitti_camera,
    kitti_camera_corners,
    kitti_image_boxes,
    limit_period,
    rotate_z,
    wrap_angle,
)
from pcdet.structures.calibration import Calibration

HEADINGS = [-math.pi, -math.pi / 2, 0.0, math.pi / 2, 2.9, math.pi, 5.96, -7.0]


@pytest.fixture
def calib() -> Calibration:
    """Camera x right, y down, z forward; LiDAR x forward, y left, z up; the camera 0.3 m before and 0.1 m below."""
    return Calibration(
        P2=np.array([[700.0, 0, 600, 45], [0, 700, 180, -0.3], [0, 0, 1, 0.005]]),
        R0=np.eye(3),
        V2C=np.array([[0.0, -1, 0, 0], [0, 0, -1, -0.1], [1, 0, 0, -0.3]]),
    )


def test_limit_period_by_hand():
    values = np.array([0.0, math.pi, -math.pi, 3.5 * math.pi])
    np.testing.assert_allclose(wrap_angle(values), [0, -math.pi, -math.pi, -0.5 * math.pi], atol=1e-12)
    assert limit_period(torch.tensor(4.0), 0, math.pi).item() == pytest.approx(4 - math.pi)


@pytest.mark.parametrize("kind", [np.float64, np.int64, "tensor"])
def test_corners_of_a_turned_box(kind):
    box = [[10, 20, 5, 4, 2, 2, 0]]
    boxes = torch.tensor(box, dtype=torch.float64) if kind == "tensor" else np.array(box, dtype=kind)
    corners = np.asarray(box_corners(boxes))[0]
    np.testing.assert_allclose(corners[0], [12, 21, 4])  # front left, bottom
    np.testing.assert_allclose(corners[6], [8, 19, 6])  # rear right, top
    assert corners[:4, 2].max() == 4 and corners[4:, 2].min() == 6


def test_corners_turn_counter_clockwise():
    corners = box_corners(np.array([[0.0, 0, 0, 4, 2, 2, math.pi / 2]]))[0]
    np.testing.assert_allclose(corners[0], [-1, 2, -1], atol=1e-12)  # the front left looks to +y, left of it is -x


def test_rotate_z_keeps_other_columns():
    points = np.array([[1.0, 0, 7, 0.5]])
    np.testing.assert_allclose(rotate_z(points, math.pi / 2), [[0, 1, 7, 0.5]], atol=1e-12)
    np.testing.assert_allclose(rotate_z(torch.tensor(points), math.pi / 2).numpy(), [[0, 1, 7, 0.5]], atol=1e-12)


@pytest.mark.parametrize("heading", HEADINGS)
def test_a11_heading_survives_the_camera_and_back(calib, heading):
    box = np.array([[20.0, 3.0, -0.8, 3.9, 1.6, 1.5, heading]])
    camera = boxes_to_kitti_camera(box, calib)
    assert -math.pi <= camera[0, 6] <= math.pi
    back = boxes_from_kitti_camera(camera, calib)
    np.testing.assert_allclose(back[0, :6], box[0, :6], atol=1e-9)
    assert math.cos(back[0, 6] - heading) == pytest.approx(1, abs=1e-12)


def test_a11_heading_by_hand(calib):
    camera = boxes_to_kitti_camera(np.array([[20.0, 3.0, -0.8, 3.9, 1.6, 1.5, 2.9]]), calib)
    assert camera[0, 6] == pytest.approx(1.8124, abs=1e-4)  # -2.9 - pi/2, wrapped
    # bottom centre: 0.75 m below the box's; length height width
    np.testing.assert_allclose(camera[0, :6], [-3, 1.45, 19.7, 3.9, 1.5, 1.6], atol=1e-9)


@pytest.mark.parametrize("heading", HEADINGS)
def test_corners_agree_in_both_frames(calib, heading):
    box = np.array([[15.0, -4.0, -1.0, 4.0, 1.8, 1.4, heading]])
    by_camera = kitti_camera_corners(boxes_to_kitti_camera(box, calib))[0]
    by_lidar = calib.lidar_to_rect(box_corners(box)[0])
    distances = np.linalg.norm(by_camera[:, None] - by_lidar[None], axis=-1)
    assert distances.min(axis=1).max() < 1e-9 and distances.min(axis=0).max() < 1e-9


def test_image_boxes_are_clipped_to_the_image(calib):
    boxes = boxes_to_kitti_camera(np.array([[4.0, 3.0, -0.8, 3.9, 1.6, 1.5, 0.0]]), calib)
    free = kitti_image_boxes(boxes, calib)
    clipped = kitti_image_boxes(boxes, calib, (375, 1242))
    assert free[0, 0] < 0 and clipped[0, 0] == 0
    assert kitti_image_boxes(np.zeros((0, 7)), calib).shape == (0, 4)


def test_no_boxes_at_all(calib):
    empty = np.zeros((0, 7))
    assert boxes_to_kitti_camera(empty, calib).shape == (0, 7)
    assert boxes_from_kitti_camera(empty, calib).shape == (0, 7)
    assert box_corners(empty).shape == (0, 8, 3)
