"""Own data through the commands: infos, two training steps, evaluation in the LiDAR frame."""

import json

import numpy as np
import pytest
import yaml

from pcdet.config import load_config

SIZES = {"Vehicle": (4.0, 1.8, 1.6), "Pedestrian": (0.8, 0.6, 1.7)}


def write_frame(root, frame, rng):
    """A vehicle and a pedestrian of 60 points each on flat ground; the lines that label them."""
    clouds = [np.column_stack([rng.uniform(-10, 10, (1500, 2)), np.zeros(1500)])]
    lines = []
    for name, size in SIZES.items():
        x, y = rng.uniform(-8, 8, 2)
        clouds.append(rng.uniform(-0.49, 0.49, (60, 3)) * size + [x, y, size[2] / 2])
        lines.append(f"{frame}.xyz,{name},{x},{y},0.0,{','.join(map(str, size))},0\n")
    points = np.concatenate(clouds)
    np.savetxt(root / "points" / f"{frame}.xyz", np.column_stack([points, rng.random(len(points)) * 255]), fmt="%.4f")
    return lines


@pytest.fixture
def own(tmp_path):
    """Clouds as text with intensities to 255, labelled in one CSV by the boxes' bottoms; a small PointPillars."""
    root, rng = tmp_path / "own", np.random.default_rng(0)
    for name in ("points", "ImageSets"):
        (root / name).mkdir(parents=True)
    lines = ["frame,class,x,y,z,length,width,height,yaw\n"]
    for split, frames in (("train", "abcd"), ("val", "ef")):
        for frame in frames:
            lines += write_frame(root, frame, rng)
        (root / "ImageSets" / f"{split}.txt").write_text("\n".join(frames))
    (root / "labels.csv").write_text("".join(lines))
    mini = json.loads(json.dumps(load_config("cfgs/synthetic_models/pointpillar_mini.yaml").settings))
    processors = mini["DATA_CONFIG"]["DATA_PROCESSOR"]
    processors[-1]["VOXEL_SIZE"] = [0.24, 0.24, 6]
    data = {
        "_BASE_CONFIG_": "cfgs/dataset_configs/custom_dataset.yaml",
        "DATA_PATH": str(root),
        "LABEL_FORMAT": "csv",
        "BOX_CONVENTION": {"origin": "bottom"},
        "CLASS_MAP": {"Vehicle": "Car"},
        "MAP_CLASS_TO_KITTI": {"Car": "Car"},
        "INTENSITY_SCALE": 1 / 255,
        "POINT_CLOUD_RANGE": [-11.52, -11.52, -2, 11.52, 11.52, 4],
        "DATA_AUGMENTOR": {"AUG_CONFIG_LIST": []},
        "DATA_PROCESSOR": processors,
    }
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**mini, "DATA_CONFIG": data}))
    return path


def test_text_clouds_and_a_csv_are_trained_on_for_two_steps_and_evaluated(own, tools, tmp_path, capsys):
    assert tools("create_data")(["custom", "--cfg_file", str(own)]) == 0
    assert "gt_database: Car 4, Pedestrian 4" in capsys.readouterr().out
    given = ["--cfg_file", str(own), "--workers", "0", "--output_dir", str(tmp_path / "out"), "--device", "cpu"]
    assert tools("train")([*given, "--epochs", "1", "--batch_size", "2"]) == 0
    history = json.loads(next((tmp_path / "out").rglob("history.json")).read_text())
    steps, losses = history["train/loss"]
    assert steps[-1] == 2 and np.isfinite(losses).all()
    metrics = json.loads(next((tmp_path / "out").rglob("metrics.json")).read_text())
    assert 0 <= metrics["Car_3d/all_R40"] <= 100 and 0 <= metrics["Pedestrian_bev/0-30m_exact"] <= 100

    page = tmp_path / "page.html"
    assert tools("test")([*given, "--pictures", "1", "--html", str(page), "--score_thresh", "0.1"]) == 0
    assert len(list((tmp_path / "out").rglob("pictures/*_bev.png"))) == 1 and '"verdicts"' in page.read_text()
