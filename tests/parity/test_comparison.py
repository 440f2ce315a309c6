"""The comparison itself must be able to fail."""

import json
import sys
from types import SimpleNamespace

import compare
import harness
import numpy as np
import pytest
import torch
from inputs import CONFIGS, info_of, load_batch, read_config
from recorded import STRICT, Row, checksum, compare_number, compare_tensor, match_detections


def record_of(array):
    flat = array.reshape(-1).astype(np.float64)
    place = (np.arange(64) * flat.size) // 64
    return {
        "shape": list(array.shape),
        "abs_sum": np.abs(flat).sum(),
        "checksum": checksum(flat),
        "values": flat[place].tolist(),
    }


@pytest.fixture
def array():
    return np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)


def test_equal_tensors_pass(array):
    assert compare_tensor("x", array, record_of(array)).deviation == 0
    assert compare_tensor("x", array * (1 + 1e-6), record_of(array)).passed
    assert compare_tensor("x", np.zeros((0, 4)), {"shape": [0, 4]}).passed


@pytest.mark.parametrize("change", ["scale", "order", "shape", "nan"])
def test_other_tensors_fail(change, array):
    record = record_of(array)
    changed = {
        "scale": array * 1.01,
        "order": array[np.r_[0:30, 31, 30, 32:50]],
        "shape": array.T,
        "nan": np.where(array == array.max(), np.nan, array),
    }[change]
    assert not compare_tensor("x", changed, record).passed


def test_numbers_and_detections():
    assert compare_number("x", 1.0005, 1.0, rtol=1e-3).passed
    assert not compare_number("x", 1.002, 1.0, rtol=1e-3).passed
    assert not compare_number("x", 1e-3, 0.0, rtol=1e-3).passed
    boxes, scores, labels = np.eye(4, 7), np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 2, 3, 1])
    turned = (boxes[::-1], scores[::-1], labels[::-1])
    assert match_detections(turned, (boxes, scores, labels)) == 1
    assert match_detections((boxes, scores, labels[::-1]), (boxes, scores, labels)) == 0.5
    assert match_detections((boxes[:3], scores[:3], labels[:3]), (boxes, scores, labels)) == 0.75
    none = (boxes[:0], scores[:0], labels[:0])
    assert match_detections(none, none) == 1
    assert match_detections(none, (boxes, scores, labels)) == 0


def written_run(folder, config="pointpillar", name="RUN.json"):
    path = folder / name
    path.write_text(json.dumps({"config": config}))
    return path


@pytest.mark.parametrize("deviation, code", [(0.5, 0), (1.5, 1)])
def test_the_command_tells_by_its_exit_code(deviation, code, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(compare, "compare_run", lambda *given: [Row("train loss", deviation)])
    monkeypatch.setattr(sys, "argv", ["compare.py", str(written_run(tmp_path)), "--data", "kitti"])
    assert compare.main() == code
    assert ("FAIL" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize("missing", ["run", "arrays", "config"])
def test_files_that_are_missing_are_named(missing, monkeypatch, capsys, tmp_path):
    run = written_run(tmp_path, config="other" if missing == "config" else "pointpillar")
    if missing == "run":
        run = tmp_path / "absent.json"
    monkeypatch.setattr(sys, "argv", ["compare.py", str(run), "--data", "kitti"])
    assert compare.main() == 2
    assert {"run": "absent.json", "arrays": "RUN.npz", "config": "called other"}[missing] in capsys.readouterr().err


def test_the_configuration_is_found_by_its_name_and_not_by_that_of_the_run(tmp_path):
    run = written_run(tmp_path, config="second")
    config, place = compare.config_of(run)
    assert place == CONFIGS / "kitti_models" / "second.yaml" and config["MODEL"]["NAME"] == "SECONDNet"
    own = {
        "MODEL": {"NAME": "Own"},
        "DATA_CONFIG": {"_BASE_CONFIG_": "cfgs/dataset_configs/kitti_dataset.yaml", "A": 1},
    }
    (tmp_path / "cfgs").mkdir()
    (tmp_path / "cfgs" / "second.json").write_text(json.dumps(own))
    config, place = compare.config_of(run)
    assert place == tmp_path / "cfgs" / "second.json" and config["MODEL"]["NAME"] == "Own"
    assert config["DATA_CONFIG"]["A"] == 1 and config["DATA_CONFIG"]["DATASET"] == "KittiDataset"
    assert compare.config_of(run, "kitti_models/pv_rcnn.yaml")[0]["MODEL"]["NAME"] == "PVRCNN"
    assert compare.config_of(run, str(place)) == (config, place)
    inside, place = compare.config_of(written_run(tmp_path, config=own, name="inside.json"))
    assert place == tmp_path / "inside.json" and inside == config


def test_images_may_be_absent_where_their_sizes_are_known(shared):
    """Only some frames have an image; what is seen by the camera follows from its size."""
    config = read_config(CONFIGS / "kitti_models" / "pointrcnn.yaml")
    folder, info = shared / "data" / "kitti" / "training", info_of(config)
    with_image = load_batch(folder, ["000001"], config, info)
    by_size = load_batch(folder, ["000001"], config, info, [(375, 1242)])
    assert torch.equal(with_image["points"], by_size["points"])
    half = load_batch(folder, ["000001"], config, info, [(375, 600)])
    assert len(half["points"].unique(dim=0)) < len(by_size["points"].unique(dim=0))
    with pytest.raises(FileNotFoundError, match="000005.png"):
        load_batch(folder, ["000005"], config, info)
    assert len(load_batch(folder, ["000005"], config, info, [(375, 1242)])["points"]) == 16384


def test_what_is_recorded_and_absent_is_not_passed_over():
    record = {"head": {"tensors": {"cls_preds": record_of(np.ones((4, 30))), "other": record_of(np.ones((4, 30)))}}}
    captured = SimpleNamespace(slots={"head": {"cls_preds": [torch.ones(4, 10), torch.ones(4, 20)]}})
    found, absent = harness._compare_slots("eval", captured, record)
    assert found.passed and found.compared  # heads that were recorded as one
    assert "other" in absent.what and not absent.compared
    rows = harness._compare_value("x", [torch.ones(64)], [record_of(np.ones(64))] * 2, STRICT)
    assert [row.passed for row in rows] == [True, False]  # one head fewer than recorded
