"""KITTI's calibration files and the frames they join."""

import numpy as np
import pytest

from pcdet.structures.calibration import Calibration

TEXT = """P0: 700 0 600 0 0 700 180 0 0 0 1 0
P2: 700 0 600 45 0 700 180 -0.3 0 0 1 0.005
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 -0.1 1 0 0 -0.3

"""


def read(tmp_path, text):
    path = tmp_path / "000000.txt"
    path.write_text(text)
    return Calibration.from_file(path)


def test_a_point_is_seen_where_it_is(tmp_path):
    calib = read(tmp_path, TEXT)
    pixels, depth = calib.lidar_to_image(np.array([[10.3, 1.0, -0.1]]))
    # 10 m before the camera, 1 m left, at its height: u = (700 * -1 + 600 * 10 + 45) / 10, v = (180 * 10 - 0.3) / 10
    np.testing.assert_allclose(pixels, [[534.5, 179.97]], atol=1e-3)
    np.testing.assert_allclose(depth, [10], atol=1e-5)


def test_lidar_and_camera_are_inverse(tmp_path):
    calib = read(tmp_path, TEXT)
    points = np.random.default_rng(0).normal(size=(50, 3)) * 20
    np.testing.assert_allclose(calib.rect_to_lidar(calib.lidar_to_rect(points)), points, atol=1e-6)


def test_the_first_of_two_equal_keys_counts(tmp_path):
    assert read(tmp_path, TEXT + "P2: " + "-10 " * 12).P2[0, 0] == 700


@pytest.mark.parametrize(
    "text, message",
    [
        (TEXT.replace("R0_rect", "R_rect"), "the key R0_rect is missing"),
        (TEXT.replace("600 45", "600"), "P2 has 11 numbers, expected 12"),
        (TEXT.replace("-0.1", "x"), r"000000\.txt:4: Tr_velo_to_cam holds something that is not a number"),
        (TEXT.replace("45", "nan"), "P2 holds a number that is not finite"),
    ],
)
def test_bad_files_name_file_and_key(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text)
