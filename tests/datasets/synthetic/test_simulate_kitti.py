"""Simulated data sets as a whole: layout, determinism, and figures that real frames have."""

import numpy as np
import pytest

from pcdet.datasets.synthetic import simulate_kitti
from pcdet.datasets.synthetic.simulate import in_view, simulate_frame
from pcdet.structures.boxes import boxes_from_kitti_camera
from pcdet.structures.calibration import Calibration

FRAMES = 24


@pytest.fixture(scope="module")
def frames():
    return [simulate_frame(11, i) for i in range(FRAMES)]


def inside(points, box, slack=0.0):
    offset = points[:, :3] - box[:3]
    cos, sin = np.cos(box[6]), np.sin(box[6])
    x, y = offset[:, 0] * cos + offset[:, 1] * sin, offset[:, 1] * cos - offset[:, 0] * sin
    return (np.abs(np.stack([x, y, offset[:, 2]], 1)) <= box[3:6] / 2 + slack).all(axis=1)


def labelled(frame):
    """(label, LiDAR box as a reader of the file gets it, index of the object) for each labelled object."""
    for label in frame.labels:
        if label.name != "DontCare":
            size = (label.size[2], label.size[0], label.size[1])
            camera = np.array([[*label.location, *size, label.rotation_y]]).round(2)
            box = boxes_from_kitti_camera(camera, frame.calib)[0]
            yield label, box, int(np.linalg.norm(frame.world.boxes[:, :3] - box[:3], axis=1).argmin())


def test_points_of_objects_lie_in_their_boxes_and_hardly_any_others_do(frames):
    own_inside = own_all = foreign = boxed = 0
    for frame in frames:
        for _, box, index in labelled(frame):
            own = frame.owner == index
            own_inside += (own & inside(frame.points, box, 0.05)).sum()
            own_all += own.sum()
            within = inside(frame.points, box)
            foreign += (within & ~own).sum()
            boxed += within.sum()
    assert own_all > 10_000
    assert own_inside / own_all > 0.999
    assert foreign / boxed < 0.005


def test_clouds_have_the_size_and_spread_of_real_ones(frames):
    counts = [len(frame.points) for frame in frames]
    assert 100_000 < np.median(counts) < 127_000
    assert 15_000 < np.median([in_view(f.points, f.calib).sum() for f in frames]) < 22_000
    points = np.concatenate([frame.points for frame in frames])
    ranges = np.linalg.norm(points[:, :3], axis=1)
    median, p90, p99 = np.percentile(ranges, [50, 90, 99])
    assert 5 < median < 12 and 14 < p90 < 32 and 38 < p99 < 70
    low, middle, high = np.percentile(points[:, 3], [10, 50, 90])
    assert low < 0.15 and 0.2 < middle < 0.4 and 0.35 < high < 0.6
    assert ranges.min() >= 1.9 and ranges.max() < 81
    assert np.isfinite(points).all() and 0 <= points[:, 3].min() and points[:, 3].max() < 1


def test_labels_have_all_classes_and_levels(frames):
    labels = [label for frame in frames for label in frame.labels]
    names = [label.name for label in labels]
    assert {"Car", "Van", "Pedestrian", "Cyclist", "DontCare"} == set(names)
    assert 4 < names.count("Car") / FRAMES < 12
    assert {label.occluded for label in labels if label.name == "Car"} >= {0, 1, 2}
    assert any(label.truncated > 0.1 for label in labels)
    assert max(label.truncated for label in labels) <= 0.95


@pytest.mark.parametrize("near, low, high", [(10, 400, 1000), (20, 120, 320), (30, 40, 120), (50, 3, 30)])
def test_free_cars_have_as_many_points_as_real_ones(frames, near, low, high):
    counts = [
        inside(frame.points, box).sum()
        for frame in frames
        for label, box, _ in labelled(frame)
        if label.name == "Car"
        and label.occluded == 0
        and label.truncated == 0
        and near <= label.location[2] < near + 10
    ]
    assert len(counts) >= 5
    assert low < np.median(counts) < high


def test_objects_do_not_overlap(frames):
    from scipy.spatial.distance import pdist

    for frame in frames[:5]:
        centres = np.array([b[:2] for n, b in zip(frame.world.names, frame.world.boxes, strict=True) if n])
        assert len(centres) < 2 or pdist(centres).min() > 0.7


def test_a_frame_depends_on_seed_and_index_only(tmp_path, frames):
    again = simulate_frame(11, 3)
    assert np.array_equal(again.points, frames[3].points) and again.labels == frames[3].labels
    assert not np.array_equal(simulate_frame(12, 3).points[:1000], frames[3].points[:1000])
    simulate_kitti(tmp_path / "a", 2, seed=5)
    simulate_kitti(tmp_path / "b", 3, seed=5, workers=2, val_fraction=0.5)
    for name in ("velodyne/000001.bin", "label_2/000001.txt", "planes/000001.txt", "calib/000001.txt"):
        assert (tmp_path / "a/training" / name).read_bytes() == (tmp_path / "b/training" / name).read_bytes()


def test_the_layout_is_kittis(tmp_path):
    out = simulate_kitti(tmp_path / "kitti", 5, seed=1, val_fraction=0.4)
    splits = {path.stem: path.read_text().split() for path in (out / "ImageSets").iterdir()}
    assert (splits["train"], splits["val"]) == (["000000", "000001", "000002"], ["000003", "000004"])
    assert splits["trainval"] == splits["train"] + splits["val"] and splits["test"] == []
    calib = Calibration.from_file(out / "training/calib/000000.txt")
    assert np.linalg.det(calib.V2C[:, :3]) == pytest.approx(1.0, abs=1e-5)
    text = (out / "training/calib/000000.txt").read_text()
    keys = [line.split(":")[0] for line in text.splitlines()]
    assert keys == ["P0", "P1", "P2", "P3", "R0_rect", "Tr_velo_to_cam", "Tr_imu_to_velo"]
    points = np.fromfile(out / "training/velodyne/000000.bin", dtype=np.float32).reshape(-1, 4)
    assert len(points) > 90_000
    for line in (out / "training/label_2/000000.txt").read_text().splitlines():
        assert len(line.split()) == 15
    assert not list(out.rglob("*.tmp"))


def test_a_second_run_keeps_finished_frames_and_makes_missing_ones(tmp_path):
    out = simulate_kitti(tmp_path / "kitti", 2, seed=1, planes=False, fov_only=True)
    first, second = (out / f"training/velodyne/00000{i}.bin" for i in range(2))
    content, stamp = second.read_bytes(), first.stat().st_mtime_ns
    second.unlink()
    simulate_kitti(out, 2, seed=1, planes=False, fov_only=True)
    assert first.stat().st_mtime_ns == stamp and second.read_bytes() == content
    assert not (out / "training/planes").exists()
    with pytest.raises(ValueError, match="other settings"):
        simulate_kitti(out, 2, seed=2, planes=False, fov_only=True)


def test_wrong_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="frames is 0"):
        simulate_kitti(tmp_path, 0)
    with pytest.raises(ValueError, match="val_fraction"):
        simulate_kitti(tmp_path, 1, val_fraction=1.0)
    (tmp_path / "training").mkdir()
    with pytest.raises(ValueError, match="not simulated"):
        simulate_kitti(tmp_path, 1)
