"""Detections in KITTI's terms."""

import json
import sys
import types

import numpy as np
import pytest
import torch

from pcdet.datasets import build_dataset
from pcdet.datasets.kitti.labels import camera_boxes, read_labels, to_annos
from pcdet.datasets.kitti.results import detections_to_annos, label_lines
from pcdet.evaluation.report import EvalReport
from pcdet.structures.boxes import boxes_from_kitti_camera
from pcdet.structures.calibration import Calibration
from pcdet.structures.detections import Detections

CLASSES = ["Car", "Pedestrian", "Cyclist"]


def calib() -> Calibration:
    p2 = np.array([[700, 0, 600, 0], [0, 700, 180, 0], [0, 0, 1, 0]], dtype=np.float32)
    v2c = np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]], dtype=np.float32)
    return Calibration(p2, np.eye(3, dtype=np.float32), v2c)


def annos_of(boxes, scores=None, labels=None):
    boxes = np.array(boxes, dtype=np.float64).reshape(-1, 7)
    scores = np.array(scores if scores is not None else [0.5] * len(boxes))
    labels = np.array(labels if labels is not None else [1] * len(boxes), dtype=np.int64)
    return detections_to_annos(boxes, scores, labels, CLASSES, calib(), np.array([360, 1200]))


def test_a_detection_by_hand():
    """A car 20 m ahead, turned as the LiDAR's x axis: rotation_y = alpha = -pi / 2."""
    annos = annos_of([[20, 0, -1, 4, 2, 1.5, 0]], labels=[1])
    assert annos["name"].tolist() == ["Car"]
    np.testing.assert_allclose(annos["location"], [[0, 1.75, 20]], atol=1e-6)
    np.testing.assert_allclose(annos["dimensions"], [[4, 1.5, 2]])  # l h w
    np.testing.assert_allclose([annos["rotation_y"][0], annos["alpha"][0]], [-np.pi / 2, -np.pi / 2], atol=1e-6)
    left, right = 600 - 700 / 18, 600 + 700 / 18  # the near face is at 18 m and 2 m wide
    top, bottom = 180 + 700 * 0.25 / 22, 180 + 700 * 1.75 / 18
    np.testing.assert_allclose(annos["bbox"], [[left, top, right, bottom]], atol=1e-3)


def test_alpha_is_the_angle_of_the_line_of_sight():
    """45 degrees to the left: alpha = rotation_y + 45 degrees."""
    annos = annos_of([[20, 20, -1, 4, 2, 1.5, 0.3]])
    np.testing.assert_allclose(annos["alpha"] - annos["rotation_y"], [np.pi / 4], atol=1e-6)


@pytest.mark.parametrize("heading", [-np.pi, -np.pi / 2, 0, np.pi / 2, 2.9, np.pi, 5.96, -7])
def test_a11_every_written_angle_is_wrapped_and_comes_back(heading, tmp_path):
    annos = annos_of([[20, -5, -1, 4, 2, 1.5, heading]])
    assert -np.pi <= annos["rotation_y"][0] <= np.pi and -np.pi <= annos["alpha"][0] <= np.pi
    if heading == 2.9:
        np.testing.assert_allclose(annos["rotation_y"], [1.8124], atol=1e-4)
    path = tmp_path / "000001.txt"
    path.write_text(label_lines(annos))
    objects, _ = read_labels(path)
    back = boxes_from_kitti_camera(camera_boxes(to_annos(objects)), calib())
    np.testing.assert_allclose(back[0, :6], [20, -5, -1, 4, 2, 1.5], atol=1e-3)
    np.testing.assert_allclose(np.cos(back[0, 6] - heading), 1, atol=1e-6)
    assert objects[0].score == 0.5


def test_no_detection_is_a_result():
    annos = annos_of([])
    assert annos["bbox"].shape == (0, 4) and annos["boxes_lidar"].shape == (0, 7) and label_lines(annos) == ""


def detections(*labels) -> Detections:
    boxes = torch.tensor([[20.0 + 5 * i, 0, -1, 4, 2, 1.5, 0.1] for i in range(len(labels))]).reshape(-1, 7)
    return Detections(boxes, torch.full((len(labels),), 0.5), torch.tensor(labels, dtype=torch.int64))


def test_results_of_a_batch_and_their_files(small_kitti, data_settings, tmp_path):
    data = build_dataset(data_settings, CLASSES, training=False, root=small_kitti)
    batch = data.collate([data[i] for i in range(2)])
    results = data.to_results(batch, [detections(3, 1), detections()])
    assert [(r["frame_id"], r["index"]) for r in results] == [("000002", 0), ("000005", 1)]
    keys = {"name", "truncated", "occluded", "alpha", "bbox", "dimensions", "location", "rotation_y", "score"}
    assert keys | {"boxes_lidar", "pred_labels", "frame_id", "index"} == set(results[0])
    assert results[0]["name"].tolist() == ["Cyclist", "Car"] and results[0]["pred_labels"].tolist() == [3, 1]
    data.write_results(results, tmp_path / "out")
    lines = (tmp_path / "out" / "000002.txt").read_text().splitlines()
    assert len(lines) == 2 and lines[0].startswith("Cyclist -1 -1 ") and len(lines[0].split()) == 16
    assert (tmp_path / "out" / "000005.txt").read_text() == ""
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert stored[0]["frame_id"] == "000002" and len(stored[0]["boxes_lidar"]) == 2


def test_d5_a_split_without_labels_has_no_metrics_but_results(small_kitti, data_settings):
    settings = {
        **data_settings,
        "DATA_SPLIT": {"train": "train", "test": "test"},
        "INFO_PATH": {"train": ["kitti_infos_train.pkl"], "test": ["kitti_infos_test.pkl"]},
    }
    data = build_dataset(settings, CLASSES, training=False, root=small_kitti)
    batch = data.collate([data[0]])
    assert "gt_boxes" not in batch
    report = data.evaluate(data.to_results(batch, [detections(1)]))
    assert report.metrics == {} and "no ground truth in this split, metrics skipped" in report.text
    assert data.metric_names() == set()


def test_training_on_a_split_without_labels_is_refused(small_kitti, data_settings):
    settings = {**data_settings, "INFO_PATH": {"train": ["kitti_infos_test.pkl"], "test": []}}
    with pytest.raises(ValueError, match="frame 000000 of 'train' has no labels"):
        build_dataset(settings, CLASSES, training=True, root=small_kitti)


def test_the_metric_is_given_truths_and_results_of_the_same_frames(small_kitti, data_settings, monkeypatch):
    """Whatever the order in which results come in."""
    given = {}

    def evaluate(truths, results, class_names):
        given.update(truths=truths, results=results, class_names=class_names)
        return EvalReport({"x": 1.0}, "the metric's text")

    monkeypatch.setitem(sys.modules, "pcdet.evaluation.kitti", types.SimpleNamespace(evaluate=evaluate))
    data = build_dataset(data_settings, CLASSES, training=False, root=small_kitti)
    results = data.to_results(data.collate([data[i] for i in range(2)]), [detections(1), detections()])
    report = data.evaluate(results[::-1])
    assert report.text.startswith("the metric's text") and report.metrics["x"] == 1.0
    assert [r["frame_id"] for r in given["results"]] == ["000002", "000005"]
    assert [t["name"].tolist() for t in given["truths"]] == [["Car"], ["DontCare"]]
    assert list(given["class_names"]) == CLASSES


def test_perfect_detections_are_scored_by_the_metric(small_kitti, data_settings):
    pytest.importorskip("pcdet.evaluation.kitti")
    data = build_dataset(data_settings, CLASSES, training=False, root=small_kitti)
    batch = data.collate([data[i] for i in range(2)])
    found = [
        Detections(boxes[:, :7], torch.ones(len(boxes)), boxes[:, 7].long())
        for boxes in (b[b[:, 7] > 0] for b in batch["gt_boxes"])
    ]
    report = data.evaluate(data.to_results(batch, found))
    assert "Car" in report.text and report.metrics
    assert report.metrics.keys() <= data.metric_names()
    assert all(np.isfinite(v) for v in report.metrics.values())
