"""Infos and the object database of own data."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml

from pcdet.datasets.custom.infos import create_infos
from pcdet.utils.files import read_pickle

CAR = "1 2 0.8 4 2 1.6 0.5 Vehicle"


def test_infos_have_openpcdets_schema(small_custom):
    infos = {s: read_pickle(small_custom / f"custom_infos_{s}.pkl") for s in ("train", "val", "test")}
    assert [i["point_cloud"] for i in infos["train"]] == [{"num_features": 4, "lidar_idx": n} for n in "ab"]
    annos = infos["train"][0]["annos"]
    assert set(annos) == {"name", "gt_boxes_lidar", "num_points_in_gt"}
    assert annos["name"].tolist() == ["Vehicle", "Tram"] and annos["num_points_in_gt"].tolist() == [60, 60]
    np.testing.assert_allclose(annos["gt_boxes_lidar"][0], [8, 1, 0.8, 4, 1.8, 1.6, 0.3], atol=1e-9)
    assert infos["val"][1]["annos"]["gt_boxes_lidar"].shape == (0, 7)
    assert "annos" not in infos["test"][0]


def test_c7_the_database_is_float32_and_equals_points_in_box_minus_centre(small_custom):
    """Frame b is a float64 file."""
    index = read_pickle(small_custom / "custom_dbinfos_train.pkl")
    assert {name: len(rows) for name, rows in index.items()} == dict.fromkeys(
        ("Vehicle", "Tram", "Pedestrian", "Cyclist"), 1
    )
    assert set(index["Cyclist"][0]) == {"name", "path", "gt_idx", "box3d_lidar", "num_points_in_gt"}
    for frame, name in (("a", "Vehicle"), ("b", "Pedestrian"), ("b", "Cyclist")):
        row = index[name][0]
        cloud = np.load(small_custom / "points" / f"{frame}.npy")
        expected = cloud[2000 + 60 * row["gt_idx"] :][:60].astype(np.float64)
        expected[:, :3] -= row["box3d_lidar"][:3]
        points = np.fromfile(small_custom / row["path"], np.float32).reshape(-1, 4)
        assert row["num_points_in_gt"] == 60
        np.testing.assert_allclose(points, expected, atol=1e-6)


@pytest.mark.parametrize(
    "damage, error, message",
    [
        (lambda t: t.label("a", [CAR, "1 2 3"]), ValueError, r"labels/a.txt:2: a label is .* has 3"),
        (lambda t: t.label("a", ["Vehicle 1 2 3 4 5 6 7"]), ValueError, r"labels/a.txt:1: could not convert .*Vehicle"),
        (lambda t: t.label("a", ["", "1 2 3 4 5 6 7 a/b"]), ValueError, r"a.txt:2: 'a/b' cannot be a class name"),
        (lambda t: (t.root / "labels/a.txt").unlink(), FileNotFoundError, r"a.txt are missing(.|\n)*train.txt:1"),
        (lambda t: (t.root / "points/a.npy").unlink(), FileNotFoundError, r"frame a is missing(.|\n)*train.txt:1"),
        (lambda t: np.save(t.root / "points/a.npy", np.zeros(40)), ValueError, r"a.npy holds .* shape \(40,\)"),
        (lambda t: np.save(t.root / "points/a.npy", np.zeros((9, 3))), ValueError, r"a.npy holds .*\(9, 3\)"),
        (lambda t: np.zeros(4, np.float32).tofile(t.root / "points/a.bin"), ValueError, "frame a has several clouds"),
        (
            lambda t: (t.root / "ImageSets/train.txt").write_text("a\n\na\n"),
            ValueError,
            "train.txt:3: frame a stands on",
        ),
    ],
)
def test_damaged_files_are_named_and_leave_the_old_infos(custom_tree, custom_settings, damage, error, message):
    custom_tree.add("train", "a", [])
    custom_tree.label("a", [CAR])
    create_infos(custom_settings, custom_tree.root)
    before = {p: p.read_bytes() for p in custom_tree.root.rglob("*.pkl")}
    damage(custom_tree)
    with pytest.raises(error, match=message):
        create_infos(custom_settings, custom_tree.root)
    assert {p: p.read_bytes() for p in custom_tree.root.rglob("*.pkl")} == before


def test_objects_that_cannot_be_learned_are_left_out_with_their_line(custom_tree, custom_settings, caplog):
    custom_tree.add("train", "a", [])
    lines = ["1 2 0.8 0 2 1.6 0.5 Vehicle", "1 2 nan 4 2 1.6 0.5 Vehicle", CAR, CAR, "1 2 0.8 4 -2 1.6 0 Cyclist"]
    custom_tree.label("a", lines)
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        create_infos(custom_settings, custom_tree.root)
    annos = read_pickle(custom_tree.root / "custom_infos_train.pkl")[0]["annos"]
    assert annos["name"].tolist() == ["Vehicle"]
    for text in ("a.txt:1: Vehicle left out, its size is 0 x 2", "a.txt:2: Vehicle left out, a value is not finite",
                 "a.txt:4: Vehicle left out, it repeats", "a.txt:5: Cyclist left out, its size"):  # fmt: skip
        assert sum(text in r.message for r in caplog.records) == 1, text


@pytest.mark.parametrize("heading, warned", [(7.0, True), (-4.0, False), (90.0, True)])
def test_headings_are_wrapped_and_doubted_beyond_a_turn(custom_tree, custom_settings, caplog, heading, warned):
    custom_tree.add("train", "a", [])
    custom_tree.label("a", [f"1 2 0.8 4 2 1.6 {heading} Vehicle"])
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        create_infos(custom_settings, custom_tree.root)
    found = read_pickle(custom_tree.root / "custom_infos_train.pkl")[0]["annos"]["gt_boxes_lidar"][0, 6]
    assert -np.pi <= found < np.pi and np.cos(found) == pytest.approx(np.cos(heading))
    assert ("a.txt:1: are they degrees?" in caplog.text) == warned


def test_frames_in_two_splits_and_absent_splits_are_one_warning_each(custom_tree, custom_settings, caplog):
    custom_tree.add("train", "a", [])
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        create_infos(custom_settings, custom_tree.root)
        assert "val.txt is absent" in caplog.text and "test.txt" not in caplog.text
        (custom_tree.root / "ImageSets/val.txt").write_text("a\n")
        caplog.clear()
        create_infos(custom_settings, custom_tree.root)
    assert "1 frames of 'train', such as a, are in 'val'" in caplog.text and "absent" not in caplog.text


def test_classes_are_renamed_or_left_out_by_the_class_map(custom_tree, custom_settings):
    custom_tree.add("train", "a", [])
    custom_tree.label("a", [CAR, CAR.replace("Vehicle", "truck"), CAR.replace("Vehicle", "tree")])
    create_infos({**custom_settings, "CLASS_MAP": {"truck": "Lorry", "tree": None}}, custom_tree.root)
    annos = read_pickle(custom_tree.root / "custom_infos_train.pkl")[0]["annos"]
    assert annos["name"].tolist() == ["Vehicle", "Lorry"]


def test_box_conventions_are_converted(custom_tree, custom_settings):
    """The same box: on its bottom, width first, degrees clockwise."""
    custom_tree.add("train", "a", [])
    custom_tree.label("a", ["1 2 0.0 2 4 1.6 -30 Vehicle"])
    convention = {"origin": "bottom", "order": "wlh", "unit": "deg", "clockwise": True}
    create_infos({**custom_settings, "BOX_CONVENTION": convention}, custom_tree.root)
    box = read_pickle(custom_tree.root / "custom_infos_train.pkl")[0]["annos"]["gt_boxes_lidar"]
    np.testing.assert_allclose(box, [[1, 2, 0.8, 4, 2, 1.6, np.pi / 6]])


@pytest.mark.parametrize("how", ["tool", "module"])
def test_the_commands(how, custom_tree, custom_settings, tmp_path, root):
    custom_tree.add("train", "a", [])
    custom_tree.label("a", [CAR])
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**custom_settings, "DATA_PATH": str(custom_tree.root)}))
    commands = {
        "tool": [str(root / "tools" / "create_data.py"), "custom", "--cfg_file", str(path)],
        "module": ["-m", "pcdet.datasets.custom.custom_dataset", "create_custom_infos", str(path)],
    }
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, *commands[how]], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "gt_database: Vehicle 1" in done.stdout
    assert len(read_pickle(custom_tree.root / "custom_infos_train.pkl")) == 1
