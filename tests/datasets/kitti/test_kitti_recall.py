"""What ``KittiDataset.evaluate`` adds to the metric: recall and precision at a score, and recall by any box."""

import pytest
import torch

from pcdet.datasets import build_dataset
from pcdet.structures.detections import Detections

CLASSES = ["Car", "Pedestrian", "Cyclist"]
FAR_AWAY = [60.0, 30, 20, 4, 2, 1.5, 0]


@pytest.fixture
def data(small_kitti, data_settings):
    """Two frames: one car, and none."""
    return build_dataset(data_settings, CLASSES, training=False, root=small_kitti)


def results(data, score=0.9):
    """The car is found at ``score``; a false one of score 0.5 lies elsewhere, and one of 0.1 in the other frame."""
    batch = data.collate([data[i] for i in range(2)])
    car = batch["gt_boxes"][0, :1, :7]
    first = Detections(torch.cat([torch.tensor([FAR_AWAY]), car]), torch.tensor([0.5, score]), torch.ones(2).long())
    second = Detections(torch.tensor([FAR_AWAY]), torch.tensor([0.1]), torch.ones(1).long())
    return data.to_results(batch, [first, second])


def test_the_table_and_openpcdets_recall_follow_the_metric(data):
    """In whatever order results come; both are numbers for TensorBoard, too."""
    report = data.evaluate(results(data)[::-1], score_threshold=0.3, recall_thresholds=[0.5])
    expected = {"recall_at_score/Car": 1.0, "precision_at_score/Car": 0.5, "recall/rcnn_0.5": 1.0}
    assert expected.items() <= report.metrics.items() and "recall/rcnn_0.7" not in report.metrics
    assert "Car_3d/moderate_R40" in report.metrics
    order = [report.text.index(part) for part in ("Car AP_R40@", "Recall and precision", "recall_rcnn_0.5: 1.000000")]
    assert order == sorted(order)


@pytest.mark.parametrize("threshold, precision", [(0.05, 1 / 3), (0.6, 1.0)])
def test_the_score_threshold_decides_what_counts(data, threshold, precision):
    metrics = data.evaluate(results(data), score_threshold=threshold).metrics
    assert metrics["precision_at_score/Car"] == pytest.approx(precision) and metrics["recall_at_score/Car"] == 1


def test_a_car_below_the_threshold_is_missed_but_overlapped(data):
    metrics = data.evaluate(results(data, score=0.2), score_threshold=0.3).metrics
    assert metrics["recall_at_score/Car"] == 0 and metrics["recall/rcnn_0.7"] == 1


def test_min_points_takes_the_car_out_of_recall_and_its_detection_out_of_precision(data):
    count = int(data.infos[0]["annos"]["num_points_in_gt"][0])
    assert data.evaluate(results(data), score_threshold=0.6, min_points=count).metrics["recall_at_score/Car"] == 1
    metrics = data.evaluate(results(data), score_threshold=0.6, min_points=count + 1).metrics
    assert "recall_at_score/Car" not in metrics and "precision_at_score/Car" not in metrics


def test_a_second_stage_has_the_recall_of_both_its_ends(data):
    """Proposals and refined boxes count whole, whatever suppression left of them."""
    batch = data.collate([data[i] for i in range(2)])
    car = batch["gt_boxes"][0, :1, :7]
    none = Detections.empty()
    found = [
        Detections(none.boxes, none.scores, none.labels, proposals=torch.tensor([FAR_AWAY]), refined=car),
        Detections(none.boxes, none.scores, none.labels, proposals=torch.zeros(0, 7), refined=torch.zeros(0, 7)),
    ]
    metrics = data.evaluate(data.to_results(batch, found), recall_thresholds=[0.5]).metrics
    assert metrics.keys() <= data.metric_names(recall_thresholds=[0.5])
    assert "recall/roi_0.7" not in data.metric_names(recall_thresholds=[0.5])
    assert metrics["recall/roi_0.5"] == 0
    assert metrics["recall/rcnn_0.5"] == 1
