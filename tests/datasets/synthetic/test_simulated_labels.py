"""Label arithmetic by hand: 2-D box, truncation, alpha, occlusion, DontCare."""

import math

import numpy as np
import pytest

from pcdet.datasets.synthetic.labels import image_box, make_labels, occlusion
from pcdet.structures.boxes import boxes_from_kitti_camera
from pcdet.structures.calibration import Calibration

FOCAL, CU, CV = 700.0, 600.0, 180.0
AXES = np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]], dtype=np.float32)
PLAIN = Calibration(
    P2=np.array([[FOCAL, 0, CU, 0], [0, FOCAL, CV, 0], [0, 0, 1, 0]], dtype=np.float32),
    R0=np.eye(3, dtype=np.float32),
    V2C=AXES,
)


def camera_box(x, z, size=2.0, rotation=0.0):
    """A cube whose centre is at the camera's height: x y z of the bottom, l h w, rotation_y."""
    return np.array([x, size / 2, z, size, size, size, rotation])


def test_image_box_of_a_cube_ahead():
    bbox, truncated = image_box(camera_box(0, 11), PLAIN)  # its near face is at 10 m and 2 m wide
    assert bbox == pytest.approx((CU - 70, CV - 70, CU + 70, CV + 70), abs=1e-3)
    assert truncated == pytest.approx(0.0, abs=1e-6)


def test_truncation_is_the_clipped_share():
    # The near face spans u = 600 + 700 * [-9.6, -7.6] / 10 = [-72, 68], the far face [40, 156.7] with z 12.
    bbox, truncated = image_box(camera_box(-8.6, 11), PLAIN)
    right = CU + FOCAL * -7.6 / 12
    assert bbox[0] == 0 and bbox[2] == pytest.approx(right, abs=1e-2)
    assert truncated == pytest.approx(72 / (72 + right), abs=1e-4)


def test_a_box_that_passes_the_camera_is_cut_at_the_near_plane():
    bbox, truncated = image_box(camera_box(1.5, 0.5), PLAIN)  # from 0.5 m behind to 1.5 m before, 0.5 to 2.5 m right
    assert bbox[0] == pytest.approx(CU + FOCAL * 0.5 / 1.5, abs=0.1)
    assert bbox[2] == 1241 and truncated > 0.9
    assert image_box(camera_box(0, -5), PLAIN) is None
    assert image_box(camera_box(-30, 11), PLAIN) is None


@pytest.mark.parametrize(
    "visible, own, level",
    [(100, 100, 0), (81, 100, 0), (80, 100, 1), (46, 100, 1), (30, 100, 2), (10, 100, 3), (0, 0, 3)],
)
def test_occlusion_levels(visible, own, level):
    assert occlusion(visible, own) == level


def label_of(camera, visible=50, own=50, points=50):
    boxes = boxes_from_kitti_camera(camera[None], PLAIN)
    return make_labels(["Car"], boxes, np.array([visible]), np.array([own]), np.array([points]), PLAIN)


def test_alpha_is_the_heading_seen_along_the_line_of_sight():
    (label,) = label_of(camera_box(5.0, 10.0, rotation=0.3))
    assert label.rotation_y == pytest.approx(0.3, abs=1e-6)
    assert label.alpha == pytest.approx(0.3 - math.atan2(5.0, 10.0), abs=1e-6)
    assert label.location == pytest.approx((5.0, 1.0, 10.0), abs=1e-5)
    assert label.line().startswith("Car 0.00 0 -0.16 ") and len(label.line().split()) == 15


def test_angles_are_wrapped():
    (label,) = label_of(camera_box(-5.0, 10.0, rotation=3.0))
    assert label.alpha == pytest.approx(3.0 + math.atan2(5.0, 10.0) - 2 * math.pi, abs=1e-6)


def test_what_is_too_small_becomes_dontcare_and_what_is_hidden_gets_no_label():
    assert [label.name for label in label_of(camera_box(0, 120.0))] == ["DontCare"]  # 12 pixels high
    assert [label.name for label in label_of(camera_box(0, 30.0), visible=1, points=1)] == ["DontCare"]
    assert label_of(camera_box(0, 30.0), visible=0, own=40, points=0) == []
    line = label_of(camera_box(0, 120.0))[0].line().split()
    assert [float(v) for v in line[1:4]] == [-1, -1, -10] and [float(v) for v in line[11:]] == [
        -1000,
        -1000,
        -1000,
        -10,
    ]


def test_dontcare_comes_last():
    cameras = np.stack([camera_box(0, 120.0), camera_box(3, 20.0)])
    many = np.array([50, 50])
    labels = make_labels(["Car", "Van"], boxes_from_kitti_camera(cameras, PLAIN), many, many, many, PLAIN)
    assert [label.name for label in labels] == ["Van", "DontCare"]


def test_unlabelled_things_get_no_label():
    boxes, many = boxes_from_kitti_camera(camera_box(0, 20.0)[None], PLAIN), np.array([50])
    assert make_labels([""], boxes, many, many, many, PLAIN) == []
