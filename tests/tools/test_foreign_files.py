"""Files of other sensors and formats, as users bring them, through the check and the demo: each gets a fitting word."""

import json
import logging

import pytest
import torch

from pcdet.config import load_config
from pcdet.datasets.clouds import CloudFiles
from pcdet.models.build import build_model
from pcdet.train_utils.checkpoint import save_checkpoint

CONFIG = "cfgs/synthetic_models/pointpillar_mini.yaml"
NO_INTENSITY = "has no field 'intensity'"
NO_CLOUD = "is this a point cloud?"
TINY = "no scan does"  # a mesh of a metre

# File below data/other -> what the check says, and what the demo does: a warning, or the error that ends it.
FILES = {
    "pcd/ascii.pcd": (NO_INTENSITY, NO_INTENSITY),
    "pcd/ascii_empty.pcd": ("is empty: a PCD file has a header", "is empty: a PCD file has a header"),
    "pcd/ascii_invalid_header.pcd": ("its header or data is broken", "its header or data is broken"),
    "pcd/ascii_multi_count.pcd": ("", ""),
    "pcd/ascii_organized.pcd": ("", ""),
    "pcd/ascii_with_empty_points.pcd": ("hold no point", NO_INTENSITY),
    "pcd/ascii_with_underscore.pcd": (NO_INTENSITY, NO_INTENSITY),
    "pcd/binary.pcd": (NO_INTENSITY, NO_INTENSITY),
    "pcd/binary_compressed.pcd": (NO_INTENSITY, NO_INTENSITY),
    "pcd/binary_compressed_organized.pcd": ("", ""),
    "mesh/diamond_ascii.ply": (TINY, NO_INTENSITY),
    "mesh/diamond.ply": (TINY, NO_INTENSITY),
    "mesh/diamond.npz": (TINY, NO_INTENSITY),
    "mesh/diamond.npy": (TINY, NO_INTENSITY),
    "mesh/diamond.xyz": (TINY, "intensity runs from -1"),
    "mesh/diamond.las": (TINY, "intensity is 0 everywhere"),
    "mesh/sphere.ply": (TINY, NO_INTENSITY),
    "waymo_kitti_format/velodyne/0000000.bin": ("As 6 values a point instead of 4", "another number of values a point"),
    "waymo_kitti_format/velodyne/1000000.bin": ("As 6 values a point instead of 4", "another number of values a point"),
    "once/000076_1616343527200.bin": ("INTENSITY_SCALE 0.00392157", "set INTENSITY_SCALE"),
    "las/simple.laz": ("of a map?", "are x, y, z metres"),
    "las/simple.las": ("of a map?", "are x, y, z metres"),
    "las/autzen.las": ("of a map?", "are x, y, z metres"),
    "nuscenes/n015-2018-07-24-11-22-45+0800__LIDAR_TOP__1532402927647951.pcd.bin": (
        "INTENSITY_SCALE 0.00392157", "set INTENSITY_SCALE",
    ),
    "kitti_like_foreign/velodyne/000000.bin": ("clouds alone", ""),
    "kitti_like_foreign/label_2/000000.txt": (NO_CLOUD, NO_CLOUD),
    "kitti_like_foreign/calib/000000.txt": (NO_CLOUD, NO_CLOUD),
}  # fmt: skip
FOLDERS = {
    "kitti_like_foreign": "Car 8, Truck 2",
    "kitti_like_foreign/label_2": NO_CLOUD,
    "las": "of a map?",
    "mesh": NO_INTENSITY,
    "nuscenes": "INTENSITY_SCALE",
    "once": "INTENSITY_SCALE",
    "pcd": "2 BREAKS",
    "waymo_kitti_format": "As 6 values a point instead of 4",
}


@pytest.fixture
def other(shared):
    return shared / "data" / "other"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    settings = load_config(CONFIG).settings
    info = CloudFiles([], settings.DATA_CONFIG, settings.CLASS_NAMES, logging.getLogger("pcdet")).info
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "checkpoint_epoch_1.pth"
    save_checkpoint(path, {"epoch": 1, "it": 1, "model_state": build_model(settings.MODEL, info).state_dict()})
    return path


def check(tools, path, folder, capsys) -> str:
    """What the check prints; its exit code must be that of its worst line."""
    code = tools("check_data")(["--data_path", str(path), "--out", str(folder / "r.html"), "--pictures", "1"])
    printed = capsys.readouterr().out
    assert code == ("BREAKS" in printed) and (folder / "r.html").is_file()
    return printed


def test_every_file_is_expected(other):
    assert {str(p.relative_to(other)) for p in other.rglob("*") if p.is_file()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_gets_a_fitting_word_from_the_check(name, other, tools, tmp_path, capsys):
    assert FILES[name][0] in check(tools, other / name, tmp_path, capsys)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_gets_a_fitting_word_from_the_check(name, other, tools, tmp_path, capsys):
    assert FOLDERS[name] in check(tools, other / name, tmp_path, capsys)


@pytest.mark.parametrize("name", FILES)
def test_a_file_gets_a_fitting_word_from_the_demo(name, other, weights, tools, tmp_path, capsys):
    given = ["--cfg_file", CONFIG, "--ckpt", str(weights), "--out", str(tmp_path), "--device", "cpu"]
    try:
        assert tools("demo")([*given, "--data_path", str(other / name)]) == 0
    except (ValueError, OSError) as error:  # one message and the status 1
        said = str(error)
        assert str(other / name) in said
    else:
        (written,) = tmp_path.glob("*.json")
        assert json.loads(written.read_text())["file"] == str(other / name)
        said = "".join(capsys.readouterr())
    assert FILES[name][1] in said and said.count("Traceback") == 0
