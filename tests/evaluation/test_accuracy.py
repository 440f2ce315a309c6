"""Accuracy of classifiers by hand."""

import numpy as np
import pytest

from pcdet.evaluation.classification import confusion_matrix, evaluate

NAMES = ["chair", "desk", "sofa"]


def test_confusion_rows_are_the_truth():
    matrix = confusion_matrix(np.array([0, 0, 0, 1, 2]), np.array([0, 0, 1, 1, 0]), 3)
    assert matrix.tolist() == [[2, 1, 0], [0, 1, 0], [1, 0, 0]] and matrix.dtype == np.int64
    assert confusion_matrix(np.zeros(0), np.zeros(0), 2).tolist() == [[0, 0], [0, 0]]


def test_overall_and_mean_class_accuracy_differ():
    """3 of 5 right; by class 2/3, 1, 0."""
    report = evaluate(np.array([0, 0, 0, 1, 2]), np.array([0, 0, 1, 1, 0]), NAMES)
    assert report.metrics == {
        "accuracy/overall": 0.6,
        "accuracy/mean_class": pytest.approx((2 / 3 + 1) / 3),
        "accuracy_of/chair": pytest.approx(2 / 3),
        "accuracy_of/desk": 1.0,
        "accuracy_of/sofa": 0.0,
    }
    assert "overall accuracy 60.00% (3 of 5)" in report.text and "called desk 1" in report.text


def test_scores_are_as_good_as_classes():
    labels, scores = np.array([0, 1, 2]), np.array([[3, 1, 2], [0, 0, 9], [-5, -5, -5.0]])
    assert evaluate(labels, scores, NAMES) == evaluate(labels, scores.argmax(axis=1), NAMES)


def test_classes_without_a_sample_do_not_enter_the_mean():
    report = evaluate(np.array([0, 1]), np.array([0, 0]), NAMES)
    assert report.metrics["accuracy/mean_class"] == 0.5 and "accuracy_of/sofa" not in report.metrics
    assert "(2 of 3 classes)" in report.text and "n/a" in report.text


def test_nothing_to_classify():
    report = evaluate(np.zeros(0, dtype=int), np.zeros((0, 3)), NAMES)
    assert report.metrics == {} and report.text == "no labelled sample, metrics skipped"


@pytest.mark.parametrize(
    "labels, predictions, message",
    [
        ([0, 1], [0], "2 labels but 1 predictions"),
        ([0, 3], [0, 1], "label 3 is none of the classes 0 to 2"),
        ([0, 1], [0, -1], "prediction -1 is none of"),
        ([0], [[1.0, 2.0]], r"shape \(1, 2\), expected \(N,\) or \(N, 3\)"),
        ([0], [[1.0, np.nan, 0.0]], "scores of sample 0 hold a NaN"),
    ],
)
def test_bad_input_is_refused(labels, predictions, message):
    with pytest.raises(ValueError, match=message):
        evaluate(np.array(labels), np.array(predictions), NAMES)
