"""Infos and the object database."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pcdet.datasets import object_database
from pcdet.datasets.kitti.infos import calib_from_info, calib_info, create_infos
from pcdet.structures.calibration import Calibration
from pcdet.utils.files import read_pickle

DONT_CARE = "DontCare -1 -1 -10 100.00 150.00 140.00 200.00 -1 -1 -1 -1000 -1000 -1000 -10"


def copy_labels(tree, frame_id: str) -> list[str]:
    return (tree.root / "training" / "label_2" / f"{frame_id}.txt").read_text().splitlines()


def objects():
    car = np.array([12, 1, -0.92, 3.9, 1.6, 1.56, 0.3])
    walker = np.array([9, -3, -0.83, 0.8, 0.6, 1.73, -2.0])
    return [("Car", car), ("Pedestrian", walker)]


def assert_equal(one: Any, other: Any, path: str = "", tolerance: float = 0.0) -> None:
    """Equal keys, types, shapes and values, all the way down."""
    if isinstance(one, dict):
        assert {str(k) for k in one} == {str(k) for k in other}, path
        for key in one:
            assert_equal(one[key], other[key], f"{path}/{key}", tolerance)
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{path}/{i}", tolerance)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        if one.dtype.kind in "US":
            assert (one == other).all(), path
        else:
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance, err_msg=path)
    else:
        assert one == other, path


def test_the_files_of_a_small_folder(small_kitti):
    infos = {s: read_pickle(small_kitti / f"kitti_infos_{s}.pkl") for s in ("train", "val", "test")}
    assert [i["point_cloud"]["lidar_idx"] for i in infos["train"]] == ["000001", "000003", "000004"]
    assert not (small_kitti / "kitti_infos_trainval.pkl").exists()
    assert "annos" not in infos["test"][0]
    annos = infos["train"][0]["annos"]
    assert annos["name"].tolist() == ["Car", "Van"] and annos["num_points_in_gt"].tolist() == [60, 60]
    np.testing.assert_allclose(annos["gt_boxes_lidar"][0, :6], [12, 1, -0.92, 3.9, 1.6, 1.56], atol=1e-4)
    np.testing.assert_allclose(np.cos(annos["gt_boxes_lidar"][:, 6]), np.cos([0.3, 1.2]), atol=1e-5)
    assert infos["val"][1]["annos"]["gt_boxes_lidar"].shape == (0, 7)
    left = [p.name for p in small_kitti.iterdir() if p.name.startswith(".")]
    assert left == []


def test_database_points_are_those_in_the_box_about_its_centre(small_kitti):
    """C7: float32 rows, equal to points in box minus centre."""
    index = read_pickle(small_kitti / "kitti_dbinfos_train.pkl")
    assert {name: len(rows) for name, rows in index.items()} == {"Car": 2, "Van": 1, "Pedestrian": 1, "Cyclist": 1}
    for row in (r for rows in index.values() for r in rows):
        points = np.fromfile(small_kitti / row["path"], np.float32).reshape(-1, 4)
        cloud = np.fromfile(small_kitti / f"training/velodyne/{row['image_idx']}.bin", np.float32).reshape(-1, 4)
        expected = cloud[3000 + 60 * row["gt_idx"] : 3060 + 60 * row["gt_idx"]].astype(np.float64)
        expected[:, :3] -= row["box3d_lidar"][:3]
        assert row["num_points_in_gt"] == len(points) == 60
        np.testing.assert_allclose(points, expected, atol=1e-6)


def test_calib_survives_the_info():
    rng = np.random.default_rng(0)
    shapes = ((3, 4), (3, 3), (3, 4))
    calib = Calibration(*(rng.random(s).astype(np.float32) for s in shapes))
    again = calib_from_info(calib_info(calib))
    for name in ("P2", "R0", "V2C"):
        np.testing.assert_array_equal(getattr(calib, name), getattr(again, name))


def test_c1_dont_care_first_gives_the_same_infos_and_database(kitti_tree, tmp_path):
    kitti_tree.add("train", "000001", objects())
    lines = copy_labels(kitti_tree, "000001")
    label = kitti_tree.root / "training" / "label_2" / "000001.txt"
    found = []
    for order in ([*lines, DONT_CARE, DONT_CARE], [DONT_CARE, lines[0], DONT_CARE, lines[1]]):
        label.write_text("\n".join(order))
        create_infos(kitti_tree.root)
        found.append([read_pickle(kitti_tree.root / f"kitti_{name}_train.pkl") for name in ("infos", "dbinfos")])
    assert_equal(*found)
    assert found[0][0][0]["annos"]["num_points_in_gt"].tolist() == [60, 60, -1, -1]


def test_c2_frames_without_objects(kitti_tree):
    kitti_tree.add("train", "000001", [])
    kitti_tree.add("train", "000002", [], lines=[DONT_CARE])
    table = create_infos(kitti_tree.root)
    empty, only = (i["annos"] for i in read_pickle(kitti_tree.root / "kitti_infos_train.pkl"))
    assert empty["gt_boxes_lidar"].shape == only["gt_boxes_lidar"].shape == (0, 7)
    assert only["num_points_in_gt"].tolist() == [-1]
    assert read_pickle(kitti_tree.root / "kitti_dbinfos_train.pkl") == {}
    assert "2 frames" in table


@pytest.mark.parametrize(
    "damage, error, message",
    [
        (
            lambda d: (d / "label_2/000001.txt").unlink(),
            FileNotFoundError,
            "000001.txt is missing, but .*train.txt",
        ),
        (lambda d: (d / "label_2/000001.txt").write_text("Car 1 2"), ValueError, "label_2/000001.txt:1"),
        (lambda d: (d / "velodyne/000001.bin").write_bytes(b"0" * 24), ValueError, "velodyne/000001.bin has 24 bytes"),
        (lambda d: (d / "velodyne/000001.bin").unlink(), FileNotFoundError, "velodyne/000001.bin"),
        (lambda d: (d / "calib/000001.txt").write_text("P2: 1 2 3"), ValueError, "calib/000001.txt"),
        (lambda d: (d / "calib/000001.txt").write_text("P0: 1"), ValueError, "calib/000001.txt: the key P2 is missing"),
    ],
)
def test_damaged_files_are_named_and_leave_the_old_infos(kitti_tree, damage, error, message):
    kitti_tree.add("train", "000001", objects())
    create_infos(kitti_tree.root)
    before = {p: p.read_bytes() for p in kitti_tree.root.rglob("*.pkl")}
    damage(kitti_tree.root / "training")
    with pytest.raises(error, match=message):
        create_infos(kitti_tree.root)
    assert {p: p.read_bytes() for p in kitti_tree.root.rglob("*.pkl")} == before


def test_a6_boxes_without_extent_are_left_out_and_named(kitti_tree, caplog):
    kitti_tree.add("train", "000001", objects())
    lines = copy_labels(kitti_tree, "000001")
    fields = lines[0].split()
    fields[9] = "0"
    label = kitti_tree.root / "training" / "label_2" / "000001.txt"
    label.write_text(f"{' '.join(fields)}\n{lines[1]}\n")
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        create_infos(kitti_tree.root)
    assert read_pickle(kitti_tree.root / "kitti_infos_train.pkl")[0]["annos"]["name"].tolist() == ["Pedestrian"]
    assert any("000001.txt:1: Car left out" in r.message for r in caplog.records)


def test_missing_images_planes_splits_and_unlisted_labels_are_each_one_warning(kitti_tree, caplog):
    kitti_tree.add("train", "000001", objects())
    kitti_tree.add("train", "000002", objects())
    kitti_tree.add("val", "000003", objects())
    (kitti_tree.root / "ImageSets" / "val.txt").unlink()
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        create_infos(kitti_tree.root)
    text = [r.message for r in caplog.records]
    for words in (
        "2 of 2 frames have no image",
        "2 of 2 frames have no road plane",
        "/val.txt is absent",
        "1 label files are in no image set and are not used: 000003",
    ):
        assert sum(words in t for t in text) == 1, words


def test_nan_points_are_counted_in_the_table(kitti_tree):
    kitti_tree.add("train", "000001", objects())
    path = kitti_tree.root / "training" / "velodyne" / "000001.bin"
    points = np.fromfile(path, np.float32).reshape(-1, 4)
    points[:3, 1] = np.nan
    points.tofile(path)
    assert "3 NaN or infinite points dropped" in create_infos(kitti_tree.root)


def test_c14_a_folder_of_something_else_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="ImageSets holds none of train.txt, val.txt"):
        create_infos(tmp_path)


def test_a_rerun_replaces_everything_and_a_failed_one_leaves_the_old_database(kitti_tree, monkeypatch):
    kitti_tree.add("train", "000001", objects())
    create_infos(kitti_tree.root)
    (kitti_tree.root / "gt_database" / "stale.bin").write_bytes(b"")
    create_infos(kitti_tree.root)
    files = sorted(p.name for p in (kitti_tree.root / "gt_database").iterdir())
    assert files == ["000001_Car_0.bin", "000001_Pedestrian_1.bin"]

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(object_database, "write_objects", full_disk)
    with pytest.raises(OSError, match="no space"):
        create_infos(kitti_tree.root)
    assert sorted(p.name for p in (kitti_tree.root / "gt_database").iterdir()) == files
    assert not [p for p in kitti_tree.root.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("how", ["tool", "module"])
def test_the_commands(how, kitti_tree, tmp_path, root):
    kitti_tree.add("train", "000001", objects())
    yaml = tmp_path / "kitti_dataset.yaml"
    yaml.write_text(KITTI_YAML.format(data_path=kitti_tree.root))
    commands = {
        "tool": [str(root / "tools" / "create_data.py"), "kitti", "--data_path", str(kitti_tree.root)],
        "module": ["-m", "pcdet.datasets.kitti.kitti_dataset", "create_kitti_infos", str(yaml)],
    }
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, *commands[how]], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "gt_database: Car 1, Pedestrian 1" in done.stdout
    assert len(read_pickle(kitti_tree.root / "kitti_infos_train.pkl")) == 1


def test_the_tool_reports_errors_in_one_line(tmp_path, root):
    done = subprocess.run(
        [sys.executable, str(root / "tools" / "create_data.py"), "kitti", "--data_path", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr and "ImageSets" in done.stderr


KITTI_YAML = """DATASET: KittiDataset
DATA_PATH: {data_path}
POINT_CLOUD_RANGE: [0, -40, -3, 70.4, 40, 1]
DATA_SPLIT: {{train: train, test: val}}
INFO_PATH: {{train: [kitti_infos_train.pkl], test: [kitti_infos_val.pkl]}}
POINT_FEATURE_ENCODING:
  encoding_type: absolute_coordinates_encoding
  used_feature_list: [x, y, z, intensity]
  src_feature_list: [x, y, z, intensity]
DATA_PROCESSOR:
  - {{NAME: calculate_grid_size, VOXEL_SIZE: [0.1, 0.1, 0.1]}}
"""


@pytest.fixture(scope="module")
def three_frames(shared: Path, tmp_path_factory) -> Path:
    """Infos of the first three real frames."""
    folder = tmp_path_factory.mktemp("three")
    (folder / "ImageSets").mkdir()
    (folder / "ImageSets" / "train.txt").write_text("000000\n000001\n000002\n")
    (folder / "training").symlink_to(shared / "data/kitti/training")
    create_infos(folder)
    return folder


def test_infos_of_real_frames_equal_the_recorded_ones(three_frames, shared):
    """Types, dtypes, shapes and values; boxes to 2e-6 m, because ours are converted in float64."""
    recorded = shared / "oracles/openpcdet_data"
    for name in ("kitti_infos_train.pkl", "kitti_dbinfos_train.pkl"):
        assert_equal(read_pickle(three_frames / name), read_pickle(recorded / name), tolerance=2e-6)


def test_the_database_of_real_frames_has_the_recorded_sizes(three_frames, shared):
    recorded = json.loads((shared / "oracles/openpcdet_data/infos.json").read_text())["gt_database"]
    files = {p.name: p.stat().st_size for p in (three_frames / "gt_database").iterdir()}
    assert files == {name: entry["bytes"] for name, entry in recorded.items()}
