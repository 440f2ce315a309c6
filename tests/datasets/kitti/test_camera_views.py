"""The views of the camera: cut once, cut anew when anything changes, and kept only where there is room."""

import logging
import multiprocessing
import os
from types import SimpleNamespace

import numpy as np
import pytest

from pcdet.datasets.cache_folder import FOLDER
from pcdet.datasets.clouds import read_cloud
from pcdet.datasets.kitti import camera_views
from pcdet.datasets.kitti.camera_views import CameraViews
from pcdet.datasets.kitti.folder import KittiFolder, in_camera_view

LOGGER = logging.getLogger("pcdet")
SHAPE = np.array([375, 1242], dtype=np.int32)


@pytest.fixture
def frame(kitti_tree, monkeypatch):
    """Root, path and calibration of a frame with 3,060 points, some of them behind the camera."""
    monkeypatch.setattr(camera_views.Path, "home", lambda: kitti_tree.root.parent / "home")
    kitti_tree.add("train", "000007", [("Car", np.array([20, 0, -0.9, 3.9, 1.6, 1.5, 0.0]))])
    folder = KittiFolder(kitti_tree.root)
    path = folder.cloud_path("train", "000007")
    points = np.fromfile(path, np.float32).reshape(-1, 4)
    points[:500, 0] *= -1
    points.tofile(path)
    return kitti_tree.root, path, folder.calib("train", "000007")


def plain(path, calib, shape=SHAPE):
    points, _ = read_cloud(path)
    return points[in_camera_view(points, calib, shape)]


def no_second_cut(*_arguments):
    raise AssertionError("cut again")


def copies(root):
    return sorted(p for p in root.rglob("*") if p.is_file()) if root.exists() else []


def test_a_view_is_cut_once(frame, monkeypatch):
    root, path, calib = frame
    first = CameraViews(root, LOGGER).read(path, calib, SHAPE)
    expected = plain(path, calib)
    assert 0 < len(expected) < 2600
    np.testing.assert_array_equal(first.points, expected)
    monkeypatch.setattr(camera_views, "cut_view", no_second_cut)
    again = CameraViews(root, LOGGER).read(path, calib, SHAPE)
    np.testing.assert_array_equal(again.points, expected)
    assert again.points.dtype == np.float32 and again.points.flags.writeable
    assert copies(root / FOLDER) == [root / FOLDER / "camera_views" / "training" / "velodyne" / "000007.bin.view"]


@pytest.mark.parametrize("what", ["cloud", "time", "calibration", "image"])
def test_what_a_view_follows_from_may_change(frame, what):
    root, path, calib = frame
    views, shape = CameraViews(root, LOGGER), SHAPE
    views.read(path, calib, shape)
    if what == "cloud":
        np.fromfile(path, np.float32)[: 4 * 2000].tofile(path)
    elif what == "time":  # the same size
        (np.fromfile(path, np.float32) * np.float32(0.9)).tofile(path)
        os.utime(path, ns=(1, 1))
    elif what == "calibration":
        calib = type(calib)(calib.P2 * np.float32([[2], [1], [1]]), calib.R0, calib.V2C)
    else:
        shape = np.array([375, 600], dtype=np.int32)
    np.testing.assert_array_equal(views.read(path, calib, shape).points, plain(path, calib, shape))
    assert len(copies(root / FOLDER)) == 1


def test_a_cloud_that_is_seen_whole_is_not_copied(frame):
    root, path, calib = frame
    seen = plain(path, calib)
    seen.tofile(path)
    views = CameraViews(root, LOGGER)
    for _ in range(2):
        np.testing.assert_array_equal(views.read(path, calib, SHAPE).points, seen)
    assert [p.stat().st_size for p in copies(root / FOLDER)] == [32]


def test_dropped_points_are_counted_from_the_copy_as_well(frame):
    root, path, calib = frame
    points = np.fromfile(path, np.float32).reshape(-1, 4)
    points[[3, 800], 0] = np.nan
    points.tofile(path)
    views = CameraViews(root, LOGGER)
    assert [views.read(path, calib, SHAPE).dropped for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("left", [0, 20, 100])
def test_a_damaged_copy_is_made_anew(frame, left):
    root, path, calib = frame
    views = CameraViews(root, LOGGER)
    views.read(path, calib, SHAPE)
    (copy,) = copies(root / FOLDER)
    whole = copy.read_bytes()
    copy.write_bytes(whole[:left])
    np.testing.assert_array_equal(views.read(path, calib, SHAPE).points, plain(path, calib))
    assert copy.read_bytes() == whole


def test_where_the_data_may_not_be_written_to_the_home_folder_serves(frame, caplog, monkeypatch):
    root, path, calib = frame
    home = root.parent / "home"
    (root / FOLDER).write_text("a file where the folder should be")
    monkeypatch.setattr(LOGGER, "propagate", True)
    CameraViews(root, LOGGER).read(path, calib, SHAPE)
    assert len(copies(home)) == 1 and not caplog.records
    (home / ".cache").rename(root.parent / "moved")
    (home / ".cache").write_text("no folder either")
    views = CameraViews(root, LOGGER)
    for _ in range(2):
        np.testing.assert_array_equal(views.read(path, calib, SHAPE).points, plain(path, calib))
    assert ["no copy can be kept" in r.message for r in caplog.records] == [True]


def test_a_nearly_full_disk_is_left_alone(frame, caplog, monkeypatch):
    root, path, calib = frame
    monkeypatch.setattr(LOGGER, "propagate", True)
    monkeypatch.setattr(camera_views.shutil, "disk_usage", lambda place: SimpleNamespace(free=2**30))
    np.testing.assert_array_equal(CameraViews(root, LOGGER).read(path, calib, SHAPE).points, plain(path, calib))
    assert copies(root / FOLDER) == [] and "less than 2 GiB free" in caplog.text


def test_fov_cache_off_writes_nothing(frame):
    root, path, calib = frame
    views = CameraViews(root, LOGGER, keep=False)
    np.testing.assert_array_equal(views.read(path, calib, SHAPE).points, plain(path, calib))
    assert not (root / FOLDER).exists()


def cut_often(root, path, calib, results):
    views = CameraViews(root, LOGGER)
    for number in range(20):
        if number % 4 == 0:
            views.write("training/velodyne/000007.bin.view", b"x" * 16, views.read(path, calib, SHAPE), False)
        results.put(views.read(path, calib, SHAPE).points.tobytes())


def test_processes_may_share_the_copies(frame):
    root, path, calib = frame
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    jobs = [context.Process(target=cut_often, args=(root, path, calib, results)) for _ in range(3)]
    for job in jobs:
        job.start()
    found = {results.get(timeout=60) for _ in range(60)}
    for job in jobs:
        job.join(60)
    assert found == {plain(path, calib).tobytes()} and len(copies(root / FOLDER)) == 1
