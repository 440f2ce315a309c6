"""The demo on single clouds: pictures and JSON, for nothing found and for nothing there as well."""

import json
import re
import sys

import numpy as np
import pytest
import torch

from pcdet.config import load_config
from pcdet.datasets.synthetic import simulate_kitti
from pcdet.models.build import build_model
from pcdet.train_utils.checkpoint import save_checkpoint

CONFIG = "cfgs/synthetic_models/pointpillar_mini.yaml"
LOW = ["--set", "MODEL.POST_PROCESSING.SCORE_THRESH", "0.0"]
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """Two simulated frames in KITTI's layout."""
    folder = tmp_path_factory.mktemp("frames")
    simulate_kitti(folder, 2, 0)
    return folder / "training" / "velodyne"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, frames):
    """Weights that were never trained: every score lies near 0.01."""
    from pcdet.datasets.kitti.camera_clouds import CameraClouds
    from pcdet.utils.logging import get_logger

    settings = load_config(CONFIG).settings
    info = CameraClouds([next(frames.iterdir())], settings.DATA_CONFIG, settings.CLASS_NAMES, get_logger()).info
    torch.manual_seed(0)
    model = build_model(settings.MODEL, info)
    path = tmp_path_factory.mktemp("ckpt") / "checkpoint_epoch_1.pth"
    save_checkpoint(path, {"epoch": 1, "it": 1, "model_state": model.state_dict()})
    return path


@pytest.fixture(scope="module", autouse=True)
def tools_on_path(root):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root / "tools"))
        yield


def run(tools, checkpoint, out, *paths, score=0.3, more=()):
    given = ["--cfg_file", CONFIG, "--ckpt", str(checkpoint), "--out", str(out), "--score_thresh", str(score)]
    return tools("demo")([*given, "--device", "cpu", "--data_path", *map(str, paths), *more])


def test_frames_with_a_camera_get_two_pictures_and_json(tools, checkpoint, frames, tmp_path):
    cloud = sorted(frames.iterdir())[0]
    assert run(tools, checkpoint, tmp_path, cloud, score=0.0, more=LOW) == 0
    written = json.loads((tmp_path / f"{cloud.stem}.json").read_text())
    assert written["objects"] and {"name", "score", "box"} == written["objects"][0].keys()
    assert len(written["objects"][0]["box"]) == 7
    assert (tmp_path / f"{cloud.stem}_bev.png").read_bytes().startswith(PNG)


def test_a_folder_nothing_found_and_an_empty_cloud_are_results(tools, checkpoint, frames, tmp_path):
    clouds = tmp_path / "clouds"
    clouds.mkdir()
    points = np.fromfile(sorted(frames.iterdir())[0], dtype=np.float32).reshape(-1, 4)
    np.save(clouds / "double.npy", points.astype(np.float64))
    np.save(clouds / "empty.npy", np.zeros((0, 4), dtype=np.float32))
    assert run(tools, checkpoint, tmp_path / "out", clouds, score=0.9, more=["--ext", ".npy"]) == 0
    for name, count in (("double", len(points)), ("empty", 0)):
        written = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert (written["points"], written["objects"]) == (count, [])
        assert (tmp_path / "out" / f"{name}_bev.png").read_bytes().startswith(PNG)


def test_a_damaged_cloud_and_an_empty_folder_are_errors(tools, checkpoint, tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"\0" * 17)
    with pytest.raises(ValueError, match=r"odd\.bin has 17 bytes"):
        run(tools, checkpoint, tmp_path / "out", tmp_path / "odd.bin")
    with pytest.raises(FileNotFoundError, match=r"files \.npy"):
        run(tools, checkpoint, tmp_path / "out", tmp_path, more=["--ext", ".npy"])


def test_a_classifier_is_sent_elsewhere(tools, checkpoint, tmp_path):
    given = ["--cfg_file", "cfgs/synthetic_models/pointnet2_ssg_shapes.yaml", "--ckpt", str(checkpoint)]
    with pytest.raises(ValueError, match="tools/test.py"):
        tools("demo")([*given, "--data_path", str(tmp_path), "--device", "cpu"])


def test_labels_beside_a_cloud_are_judged_and_one_page_shows_all_clouds(tools, checkpoint, frames, tmp_path):
    page = tmp_path / "page.html"
    assert run(tools, checkpoint, tmp_path, frames, score=0.0, more=["--html", str(page), *LOW]) == 0
    scenes = scenes_of(page)
    clouds = sorted(frames.iterdir())
    assert [scene["name"] for scene in scenes] == [cloud.stem for cloud in clouds]
    for cloud, scene in zip(clouds, scenes, strict=True):
        lines = (frames.parent / "label_2" / f"{cloud.stem}.txt").read_text().splitlines()
        labelled = [line.split()[0] for line in lines if not line.startswith("DontCare")]
        assert sorted(item["name"] for item in scene["truth"]) == sorted(labelled) and labelled
        # Nothing was trained: from score 0 on no detection is right, and what counts is missed.
        assert {item["verdicts"][0] for item in scene["found"]} <= {0, -1}
        assert 1 not in {item["verdicts"][0] for item in scene["truth"]}


def test_a_missing_viewer_is_said_before_anything_runs(tools, checkpoint, frames, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ValueError, match="pip install rerun-sdk"):
        run(tools, checkpoint, tmp_path / "out", frames, more=["--rerun"])
    assert not (tmp_path / "out").exists()


def test_an_evaluation_shows_its_first_scenes(tools, checkpoint, frames, tmp_path, capsys):
    """The same scenes as the demo's: the same boxes, the same verdicts."""
    data = frames.parents[1]
    assert tools("create_data")(["kitti", "--data_path", str(data)]) == 0
    given = ["--cfg_file", CONFIG, "--ckpt", str(checkpoint), "--workers", "0", "--device", "cpu", "--split", "train"]
    page, out = tmp_path / "page.html", tmp_path / "out"
    shown = ["--pictures", "1", "--html", str(page), "--score_thresh", "0"]
    where = ["DATA_CONFIG.DATA_PATH", str(data)]
    assert tools("test")([*given, "--output_dir", str(out), *shown, *LOW, *where]) == 0
    assert "1 pictures are in" in capsys.readouterr().out
    (picture,) = out.rglob("pictures/*_bev.png")
    assert picture.read_bytes().startswith(PNG)
    frame = picture.stem.removesuffix("_bev")
    (scene,) = scenes_of(page)
    assert scene["name"] == frame and scene["truth"]

    other = tmp_path / "demo.html"
    run(tools, checkpoint, tmp_path, frames / f"{frame}.bin", score=0.0, more=["--html", str(other), *LOW])
    (same,) = scenes_of(other)
    assert [item["verdicts"] for item in same["truth"]] == [item["verdicts"] for item in scene["truth"]]
    assert [item["name"] for item in same["found"]] == [item["name"] for item in scene["found"]]
    boxes = [[item["box"] for item in one["truth"]] for one in (same, scene)]
    np.testing.assert_allclose(*boxes, atol=1e-3)


def scenes_of(page):
    content = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)[1]
    return json.loads(content)["scenes"]
