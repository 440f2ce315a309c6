"""``pcdet.load_model(...).predict(...)``: three lines, files and arrays, warnings of foreign clouds."""

import logging
import subprocess
import sys

import numpy as np
import pytest
import torch

import pcdet
from pcdet.config import load_config
from pcdet.datasets.clouds import CloudFiles
from pcdet.datasets.doubts import fit_doubts
from pcdet.datasets.synthetic import simulate_kitti
from pcdet.models.build import build_model
from pcdet.structures.detections import Detections
from pcdet.train_utils.checkpoint import save_checkpoint

CONFIG = "cfgs/synthetic_models/pointpillar_mini.yaml"
LIMITS = [0, -40, -3, 70.4, 40, 1]


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    """Two simulated clouds apart from any calibration."""
    folder = tmp_path_factory.mktemp("predict")
    simulate_kitti(folder, 2, 0)
    out = []
    for path in sorted((folder / "training" / "velodyne").iterdir()):
        out.append(path.rename(folder / path.name))
    return out


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    settings = load_config(CONFIG).settings
    info = CloudFiles([], settings.DATA_CONFIG, settings.CLASS_NAMES, logging.getLogger("pcdet")).info
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "checkpoint_epoch_1.pth"
    save_checkpoint(path, {"epoch": 1, "it": 1, "model_state": build_model(settings.MODEL, info).state_dict()})
    return path


@pytest.fixture(scope="module")
def model(weights):
    return pcdet.load_model(CONFIG, weights, "cpu", ["MODEL.POST_PROCESSING.SCORE_THRESH", "0.0"])


def same(a: Detections, b: Detections) -> None:
    torch.testing.assert_close((a.boxes, a.scores, a.labels), (b.boxes, b.scores, b.labels), rtol=1e-4, atol=1e-4)


def test_files_arrays_tensors_and_lists_agree(model, clouds):
    rows = np.fromfile(clouds[0], dtype=np.float32).reshape(-1, 4)
    one = model.predict(clouds[0])
    assert len(one) > 0 and model.class_names[int(one.labels[0]) - 1] in ("Car", "Pedestrian", "Cyclist")
    same(one, model.predict(str(clouds[0])))
    same(one, model.predict(rows))
    same(one, model.predict(torch.from_numpy(rows).double()))
    found = model.predict([rows, clouds[1], np.zeros((0, 4))], batch_size=2)
    assert len(found) == 3 and model.predict([]) == []
    same(one, found[0])
    same(model.predict(clouds[1]), found[1])
    high = float(one.scores.median())
    assert len(model.predict(rows, score=high)) == int((one.scores >= high).sum()) < len(one)


def test_arrays_are_left_as_they_are_and_bad_ones_are_named(model, clouds):
    rows = np.fromfile(clouds[0], dtype=np.float32).reshape(-1, 4)
    before = rows.copy()
    model.predict(rows)
    assert np.array_equal(rows, before)
    with pytest.raises(ValueError, match=r"cloud 1 has shape \(10, 3\), expected \(N, 4\): x y z intensity"):
        model.predict([rows, np.zeros((10, 3))])
    with pytest.raises(FileNotFoundError, match=r"nowhere\.bin"):
        model.predict("nowhere.bin")
    with pytest.raises(ValueError, match="batch_size is 0"):
        model.predict([rows], batch_size=0)


def test_foreign_clouds_are_warned_of(model, clouds, caplog):
    rows = np.fromfile(clouds[0], dtype=np.float32).reshape(-1, 4)
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        model.predict(rows)
        assert caplog.text == ""
        model.predict(rows * np.float32([1, 1, 1, 255]))
        model.predict(rows + np.float32([0, 0, 1.7, 0]))
    assert "cloud 0: intensity runs from 0 to" in caplog.text and "to z (the sensor is mounted" in caplog.text


def flat(height: float = -1.7, reach: float = 60.0) -> np.ndarray:
    """A ground of points, four a square metre, forward and backward."""
    x, y = np.meshgrid(np.arange(-reach, reach, 0.5), np.arange(-reach / 2, reach / 2, 0.5))
    return np.column_stack([x.ravel(), y.ravel(), np.full(x.size, height)])


@pytest.mark.parametrize(
    "points, ground, expected",
    [
        (flat(), -1.78, None),
        (flat(), None, None),
        (flat(-1.1), -1.78, None),
        (flat(0.0), -1.78, "add -1.78 to z"),
        (flat(3.0), None, "between the heights -3 and 1"),
        (flat() * 1000, -1.78, "0% of the points lie over"),
        (flat() / 1000, None, "is the unit the metre"),
        (flat() - [70, 0, 0], -1.78, "x forward"),
        (np.zeros((0, 3)), -1.78, "no points"),
    ],
)
def test_what_does_not_fit(points, ground, expected):
    doubts = " ".join(fit_doubts(points, LIMITS, ground))
    assert doubts == "" if expected is None else expected in doubts


def test_real_frames_fit_and_other_sensors_do_not(shared):
    """KITTI's own frames raise nothing but what their intensities do."""
    frames = sorted((shared / "data/kitti/training/velodyne").glob("*.bin"))[::5]
    assert frames
    for path in frames:
        assert fit_doubts(np.fromfile(path, dtype=np.float32).reshape(-1, 4), LIMITS, -1.78) == [], path.name


def test_import_alone_is_light(root):
    code = "import sys, pcdet; assert 'torch' not in sys.modules and 'numpy' not in sys.modules; pcdet.load_model"
    subprocess.run([sys.executable, "-c", code + "; assert 'torch' in sys.modules"], cwd=root, check=True)
    with pytest.raises(AttributeError, match="no attribute 'load_modle'"):
        _ = pcdet.load_modle


def test_a_classifier_is_sent_elsewhere(weights):
    with pytest.raises(ValueError, match="tools/test.py"):
        pcdet.load_model("cfgs/synthetic_models/pointnet2_ssg_shapes.yaml", weights, "cpu")
