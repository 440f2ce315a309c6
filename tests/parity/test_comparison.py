"""The comparison itself must be able to fail."""

import sys

import compare
import numpy as np
import pytest
from recorded import Row, checksum, compare_number, compare_tensor, match_detections


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


@pytest.mark.parametrize("deviation, code", [(0.5, 0), (1.5, 1)])
def test_the_command_tells_by_its_exit_code(deviation, code, monkeypatch, capsys):
    monkeypatch.setattr(compare, "compare_run", lambda *paths: [Row("train loss", deviation)])
    monkeypatch.setattr(sys, "argv", ["compare.py", "pointpillar.A.json", "--data", "kitti"])
    assert compare.main() == code
    assert ("FAIL" in capsys.readouterr().out) == bool(code)
