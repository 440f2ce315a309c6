"""Intersection over union by hand."""

import numpy as np
import pytest

from pcdet.evaluation.segmentation import class_ious, cloud_iou, count_points, evaluate_parts, evaluate_semantic


def result(labels, called):
    return {"labels": np.array(labels), "called": np.array(called)}


def test_the_iou_of_an_object_and_the_part_that_is_not_there():
    labels, called = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    assert cloud_iou(labels, called, [0, 1]) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert cloud_iou(labels, called, [0, 1, 2]) == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)  # 2 is in neither
    assert cloud_iou(np.array([0, 0]), np.array([0, 2]), [0, 2]) == pytest.approx((1 / 2 + 0) / 2)
    assert cloud_iou(np.array([0, -1]), np.array([0, 1]), [0, 1]) == 1.0  # a point without a label


def test_instance_and_class_means():
    results = [result([0, 0], [0, 0]), result([0, 1], [0, 0]), result([2, 2], [2, 3])]
    report = evaluate_parts(results, np.array([0, 0, 1]), ["cup", "bag", "hat"], [[0, 1], [2, 3], [4]], list("abcde"))
    ious = [1.0, (1 / 2 + 0) / 2, (1 / 2 + 0) / 2]
    assert report.metrics["iou/instance_mean"] == pytest.approx(np.mean(ious))
    assert report.metrics["iou_of/cup"] == pytest.approx(np.mean(ious[:2]))
    assert report.metrics["iou/class_mean"] == pytest.approx((np.mean(ious[:2]) + ious[2]) / 2)
    assert "iou_of/hat" not in report.metrics and "2 of 3 categories" in report.text
    assert report.metrics["accuracy/overall"] == pytest.approx(4 / 6)
    assert evaluate_parts([], np.zeros(0, int), ["cup"], [[0]], ["a"]).metrics == {}


def test_semantic_means_leave_out_what_is_nowhere():
    matrix = count_points([result([0, 0, 1, -1], [0, 1, 1, 0]), result([0], [0])], 3)
    assert matrix.tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert class_ious(matrix)[:2] == pytest.approx([2 / 3, 1 / 2]) and np.isnan(class_ious(matrix)[2])
    report = evaluate_semantic(matrix, ["wall", "floor", "door"])
    assert report.metrics["iou/mean"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert report.metrics["accuracy/overall"] == pytest.approx(3 / 4)
    assert report.metrics["accuracy/mean_class"] == pytest.approx((2 / 3 + 1) / 2)
    assert "door" in report.text and "n/a" in report.text
    assert evaluate_semantic(np.zeros((2, 2), int), ["a", "b"]).metrics == {}
