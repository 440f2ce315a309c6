"""Reading the files of a KITTI folder."""

import struct

import numpy as np
import pytest

from pcdet.datasets.clouds import cloud_doubts, read_cloud
from pcdet.datasets.kitti.folder import KittiFolder, in_camera_view, png_shape
from pcdet.datasets.kitti.labels import read_labels
from pcdet.datasets.splits import read_split
from pcdet.structures.calibration import Calibration


def calib(focal: float = 700.0) -> Calibration:
    p2 = np.array([[focal, 0, 600, 0], [0, focal, 180, 0], [0, 0, 1, 0]], dtype=np.float32)
    v2c = np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]], dtype=np.float32)
    return Calibration(p2, np.eye(3, dtype=np.float32), v2c)


def test_a_cloud_is_read_as_rows(tmp_path):
    points = np.arange(12, dtype=np.float32).reshape(3, 4)
    points.tofile(tmp_path / "a.bin")
    read, dropped = read_cloud(tmp_path / "a.bin")
    np.testing.assert_array_equal(read, points)
    assert dropped == 0


def test_c8_a_size_that_does_not_fit_is_an_error_with_file_and_remainder(tmp_path):
    path = tmp_path / "a.bin"
    np.zeros(20, np.float32).tofile(path)
    assert read_cloud(path, 4)[0].shape == (5, 4) and read_cloud(path, 5)[0].shape == (4, 5)
    np.zeros(21, np.float32).tofile(path)
    with pytest.raises(ValueError, match=r"a.bin has 84 bytes, which is 4 more than a multiple of 16"):
        read_cloud(path)
    with pytest.raises(FileNotFoundError, match="b.bin is missing"):
        read_cloud(tmp_path / "b.bin")


def test_b15_points_that_are_not_finite_are_dropped_and_counted(tmp_path):
    points = np.random.default_rng(0).random((100, 4)).astype(np.float32)
    points[[3, 50, 99], 0] = np.nan
    points[10, 2] = np.inf
    points[11, 3] = np.nan
    points.tofile(tmp_path / "a.bin")
    read, dropped = read_cloud(tmp_path / "a.bin")
    assert dropped == 5 and read.shape == (95, 4) and np.isfinite(read).all()
    np.full((8, 4), np.nan, np.float32).tofile(tmp_path / "a.bin")
    assert read_cloud(tmp_path / "a.bin")[0].shape == (0, 4)


@pytest.mark.parametrize("factor, words", [(1, []), (255, ["0 to 1", "INTENSITY_SCALE"]), (3300, ["INTENSITY_SCALE"])])
def test_b14_intensity_of_another_scale_is_noticed(factor, words):
    points = np.random.default_rng(0).random((100, 4)).astype(np.float32) * np.float32([50, 20, 2, 1])
    points[:, 3] *= factor
    doubts = " ".join(cloud_doubts(points))
    assert all(word in doubts for word in words) and bool(words) == bool(doubts)


def test_b14_missing_intensity_is_noticed():
    assert "not recorded" in cloud_doubts(np.array([[1, 2, 0, 0], [9, 3, 1, 0]], np.float32))[0]
    assert cloud_doubts(np.zeros((0, 4), np.float32)) == []


def test_c8_a_file_with_more_values_a_point_is_noticed():
    """Five values a point (the fifth a ring number, the fourth up to 255) read as four."""
    rng = np.random.default_rng(0)
    rows = np.concatenate(
        [rng.normal(0, [10, 10, 2], (400, 3)), rng.integers(0, 255, (400, 1)), rng.random((400, 1))], axis=1
    )
    assert any("number of values" in doubt for doubt in cloud_doubts(rows.reshape(-1, 4)))


def test_the_image_size_comes_from_the_image_or_else_the_camera(tmp_path):
    folder = KittiFolder(tmp_path)
    shape, found = folder.image_shape("train", "000001", calib(707.0493))
    assert shape.tolist() == [370, 1224] and shape.dtype == np.int32 and not found
    assert folder.image_shape("train", "000001", calib(500.0))[0].tolist() == [360, 1200]
    nowhere = Calibration(np.zeros((3, 4), np.float32), np.eye(3, dtype=np.float32), np.zeros((3, 4), np.float32))
    assert folder.image_shape("train", "000001", nowhere)[0].tolist() == [375, 1242]
    image = folder.image_path("train", "000001")
    image.parent.mkdir(parents=True)
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 33, 22))
    shape, found = folder.image_shape("train", "000001", calib())
    assert shape.tolist() == [22, 33] and found
    image.write_bytes(b"JFIF")
    with pytest.raises(ValueError, match="000001.png is not a PNG"):
        png_shape(image)


def test_the_camera_view_by_hand():
    """f = 700, centre (600, 180), image 360 x 1200: at 7 m the left border is at y = 6 m, the top at z = 1.8 m."""
    points = np.array(
        [[7, 5.99, 0], [7, 6.01, 0], [7, 0, 1.79], [7, 0, 1.81], [-7, 0, 0], [7, -5.99, -1.79]], np.float32
    )
    view = in_camera_view(points, calib(), np.array([360, 1200]))
    assert view.tolist() == [True, False, True, False, False, True]


def test_road_planes(tmp_path):
    folder = KittiFolder(tmp_path)
    assert folder.road_plane("train", "000001") is None
    path = tmp_path / "training" / "planes" / "000001.txt"
    path.parent.mkdir(parents=True)
    path.write_text("# Matrix\nWIDTH 4\nHEIGHT 1\n0 2 0 -3.3\n")
    np.testing.assert_allclose(folder.road_plane("train", "000001"), [0, -1, 0, 1.65])  # turned up, length 1
    path.write_text("# Matrix\nWIDTH 4\nHEIGHT 1\n0 2 0\n")
    with pytest.raises(ValueError, match=r"000001.txt:4"):
        folder.road_plane("train", "000001")


def test_a_frame_listed_twice_is_an_error_with_file_and_line(tmp_path):
    (tmp_path / "ImageSets").mkdir()
    (tmp_path / "ImageSets" / "train.txt").write_text("000001\n000002\n\n000001\n")
    with pytest.raises(ValueError, match=r"train.txt:4: frame 000001 stands on line 1"):
        KittiFolder(tmp_path).frame_ids("train")


def test_other_sensors_files_are_doubted(shared):
    """Five values a point, and intensity up to 196, in real files."""
    sweep = next((shared / "data/other/nuscenes").iterdir())
    assert any("number of values" in d for d in cloud_doubts(read_cloud(sweep, 5)[0].reshape(-1, 4)))
    assert not any("number of values" in d for d in cloud_doubts(read_cloud(sweep, 5)[0]))
    once = next((shared / "data/other/once").iterdir())
    assert any("INTENSITY_SCALE" in d for d in cloud_doubts(read_cloud(once)[0]))
    six = np.fromfile(shared / "data/other/waymo_kitti_format/velodyne/0000000.bin", np.float32)
    assert any("number of values" in d for d in cloud_doubts(six.reshape(-1, 4)))
    frames = sorted((shared / "data/kitti/training/velodyne").iterdir())[:20]
    assert not [d for f in frames for d in cloud_doubts(read_cloud(f)[0])]


def test_files_that_begin_with_a_byte_order_mark_are_read(tmp_path):
    """Editors on Windows write one; it would be part of the first frame, class and key."""
    texts = {
        "train.txt": "000000\r\n",
        "label.txt": "Car 0 0 0 1 2 3 4 1.5 1.6 3.9 1 2 20 0\r\n",
        "calib.txt": "R0_rect: 1 0 0 0 1 0 0 0 1\r\n"
        + "".join(f"{key}: 1 0 0 0 0 1 0 0 0 0 1 0\r\n" for key in ("P2", "Tr_velo_to_cam")),
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(f"\ufeff{text}".encode())
    assert read_split(tmp_path / "train.txt") == {"000000": 1}
    assert [o.name for o in read_labels(tmp_path / "label.txt")[0]] == ["Car"]
    np.testing.assert_array_equal(Calibration.from_file(tmp_path / "calib.txt").R0, np.eye(3))
