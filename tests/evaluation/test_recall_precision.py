"""Recall and precision at a score threshold, and OpenPCDet's recall counters, by hand."""

import numpy as np
import pytest

from pcdet.evaluation.recall import recall_counters, recall_precision


def car(x: float) -> list[float]:
    """A 4 m long car; 1 m apart along x two of them overlap by 3/5."""
    return [x, 0, 0, 4, 2, 1.5, 0]


def found(*pairs, name="Car"):
    """Detections at (x, score)."""
    boxes = np.array([car(x) for x, _ in pairs]).reshape(-1, 7)
    return {"boxes_lidar": boxes, "score": np.array([s for _, s in pairs]), "name": np.array([name] * len(pairs))}


def table(truth_x, detections, *, names=None, points=None, classes=("Car",), score=0.3, **kwargs):
    """One frame."""
    names = names if names is not None else ["Car"] * len(truth_x)
    points = points if points is not None else [100] * len(truth_x)
    boxes = np.array([car(x) for x in truth_x]).reshape(-1, 7)
    return recall_precision(
        [boxes], [names], [np.array(points)], [detections], class_names=classes, score_threshold=score, **kwargs
    )


def counts(result):
    return [(c.true_positives, c.false_positives, c.ground_truths) for c in result.classes]


def test_two_of_three_found_and_one_false():
    result = table([0, 20, 40], found((0.1, 0.9), (20.2, 0.8), (60, 0.7), (40, 0.29)))
    assert counts(result) == [(2, 1, 3)]
    assert result.metrics == {
        "recall_at_score/Car": pytest.approx(2 / 3), "precision_at_score/Car": pytest.approx(2 / 3),
    }  # fmt: skip
    assert "recall 66.7% (2 of 3)  precision 66.7% (2 of 3)" in result.text and "IoU > 0.70" in result.text


def test_one_ground_truth_is_found_once():
    assert counts(table([0], found((0, 0.9), (0.1, 0.8)))) == [(1, 1, 1)]


def test_the_best_scored_detection_chooses_the_largest_overlap():
    """The first lies on both and takes the nearer; the second still finds the other."""
    assert counts(table([0, 1], found((0.9, 0.5), (0.1, 0.9)), iou_threshold=0.5)) == [(2, 0, 2)]


def test_the_threshold_is_strict_and_may_be_set_by_class():
    shifted = found((1.0, 0.9))  # 3/5
    assert counts(table([0], shifted)) == [(0, 1, 1)]
    assert counts(table([0], shifted, iou_threshold=0.59)) == [(1, 0, 1)]
    assert counts(table([0], shifted, iou_threshold={"car": 0.5})) == [(1, 0, 1)]
    assert counts(table([0], found((0, 0.9)), iou_threshold={"Bus": 0.5})) == [(1, 0, 1)]


def test_ground_truths_with_few_points_are_neither_missed_nor_held_against_a_detection():
    detections = found((0, 0.9), (20, 0.8))
    assert counts(table([0, 20, 40], detections, points=[20, 19, 3], min_points=20)) == [(1, 0, 1)]
    assert counts(table([0, 20, 40], detections, points=[20, 19, 3])) == [(2, 0, 3)]


def test_a_counted_ground_truth_is_taken_before_an_ignored_one_that_overlaps_more():
    assert counts(table([0, 0.4], found((0.4, 0.9)), points=[50, 1], min_points=5)) == [(1, 0, 1)]


def test_vans_are_neutral_and_other_classes_are_not():
    detections = found((0, 0.9), (20, 0.9))
    assert counts(table([0, 20], detections, names=["Van", "Truck"])) == [(0, 1, 0)]


def test_classes_are_counted_apart_and_without_case():
    result = table([0, 20], found((0, 0.9)), names=["CAR", "Cyclist"], classes=("Car", "Cyclist"))
    assert counts(result) == [(1, 0, 1), (0, 0, 1)]
    assert result.classes[1].recall == 0 and result.classes[1].precision is None
    assert "precision_at_score/Cyclist" not in result.metrics and "precision n/a (0 of 0)" in result.text


def test_d3_empty_frames():
    assert counts(table([], found())) == [(0, 0, 0)]
    assert counts(table([], found((0, 0.9)))) == [(0, 1, 0)]
    assert counts(table([0], found())) == [(0, 0, 1)]
    none = recall_precision([], [], [], [], class_names=["Car"], score_threshold=0.5)
    assert counts(none) == [(0, 0, 0)] and none.metrics == {}


def test_frames_and_arrays_that_do_not_pair_up_are_refused():
    with pytest.raises(ValueError, match=r"of \[1, 1, 1, 0\] frames"):
        recall_precision([np.zeros((0, 7))], [[]], [[]], [], class_names=["Car"], score_threshold=0.5)
    with pytest.raises(ValueError, match="frame number 0: "):
        table([0, 20], found(), names=["Car"])


def test_recall_counters_take_any_box_of_any_score():
    """Overlaps 1, 3/5, 1/3 and none."""
    truth = [np.array([car(0), car(20)]), np.array([car(0)]), np.array([car(0)]), np.zeros((0, 7))]
    boxes = [np.array([car(0), car(21)]), np.array([car(2)]), np.zeros((0, 7)), np.array([car(5)])]
    expected = {"recall/rcnn_0.3": 0.75, "recall/rcnn_0.5": 0.5, "recall/rcnn_0.7": 0.25}
    assert recall_counters(truth, boxes) == expected
    assert recall_counters(truth, boxes, stage="roi", thresholds=(0.5,)) == {"recall/roi_0.5": 0.5}
    assert recall_counters([np.zeros((0, 7))], [np.zeros((0, 7))]) == {}
