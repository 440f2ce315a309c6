import pytest
import torch

from pcdet.models.candidates import Candidates
from pcdet.models.post_processing import select_detections

A, B, C = [0.0, 0, 0, 4, 2, 1, 0], [0.1, 0, 0, 4, 2, 1, 0], [20.0, 0, 0, 4, 2, 1, 0]


def settings(multi=False, score=0.1, threshold=0.5, **nms):
    config = {"MULTI_CLASSES_NMS": multi, "NMS_TYPE": "nms_gpu", "NMS_THRESH": threshold} | nms
    return {"SCORE_THRESH": score, "NMS_CONFIG": config}


def logits(*rows):
    return torch.logit(torch.tensor(rows))


def test_the_better_of_two_boxes_at_one_place_remains():
    found = select_detections(
        Candidates(torch.tensor([A, B, C]), logits([0.6, 0.2], [0.3, 0.8], [0.4, 0.05])), settings(NMS_PRE_MAXSIZE=10)
    )
    assert found.labels.tolist() == [2, 1]
    torch.testing.assert_close(found.boxes, torch.tensor([B, C]))
    torch.testing.assert_close(found.scores, torch.tensor([0.8, 0.4]))


def test_a10_one_box_in_several_classes():
    """Case A10: three equal boxes of classes 1 to 3, one below the threshold: one remains, or one a class."""
    boxes = torch.tensor([A, A, A])
    scores = logits([0.9, 0.01, 0.01], [0.01, 0.8, 0.01], [0.01, 0.01, 0.05])
    for _ in range(20):
        assert select_detections(Candidates(boxes, scores), settings()).labels.tolist() == [1]
        assert select_detections(Candidates(boxes, scores), settings(multi=True)).labels.tolist() == [1, 2]


def test_with_classes_apart_a_box_may_be_found_twice():
    found = select_detections(Candidates(torch.tensor([A, C]), logits([0.6, 0.7], [0.8, 0.05])), settings(multi=True))
    assert found.labels.tolist() == [1, 1, 2]
    torch.testing.assert_close(found.scores, torch.tensor([0.8, 0.6, 0.7]))
    torch.testing.assert_close(found.boxes[:, 0], torch.tensor([20.0, 0, 0]))


def test_with_classes_apart_boxes_keep_the_class_they_had():
    """A second stage has one logit a proposal, whose class is known: each class is suppressed by itself."""
    labels = torch.tensor([3, 2, 3, 2])
    scene = Candidates(torch.tensor([A, A, B, C]), logits([0.6], [0.5], [0.9], [0.05]), labels)
    found = select_detections(scene, settings(multi=True))
    assert found.labels.tolist() == [2, 3]
    torch.testing.assert_close(found.scores, torch.tensor([0.5, 0.9]))
    torch.testing.assert_close(found.boxes, torch.tensor([A, B]))
    nothing = Candidates(scene.boxes[:0], scene.logits[:0], labels[:0])
    assert len(select_detections(nothing, settings(multi=True))) == 0


def test_the_score_threshold_itself_is_enough():
    scores = torch.tensor([[0.0], [-1e-3]])
    assert len(select_detections(Candidates(torch.tensor([A, C]), scores), settings(score=0.5))) == 1


def test_the_most_boxes_before_and_after():
    boxes = torch.tensor([[10.0 * i, 0, 0, 4, 2, 1, 0] for i in range(6)])
    scores = logits(*([0.9 - 0.1 * i] for i in range(6)))
    assert len(select_detections(Candidates(boxes, scores), settings())) == 6
    assert len(select_detections(Candidates(boxes, scores), settings(NMS_PRE_MAXSIZE=4))) == 4
    found = select_detections(Candidates(boxes, scores), settings(NMS_PRE_MAXSIZE=4, NMS_POST_MAXSIZE=2))
    assert found.boxes[:, 0].tolist() == [0, 10]


def test_raw_scores_are_logits():
    found = select_detections(
        Candidates(torch.tensor([A]), torch.tensor([[-1.0, 2.0]])), settings() | {"OUTPUT_RAW_SCORE": True}
    )
    assert found.scores.tolist() == [2.0]


def test_upright_suppression_ignores_headings():
    """Two crossing bars: their rotated overlap is small, as upright boxes they are the same."""
    boxes = torch.tensor([[0.0, 0, 0, 8, 1, 1, 0], [0, 0, 0, 8, 1, 1, 1.57]])
    scores = logits([0.9], [0.8])
    assert len(select_detections(Candidates(boxes, scores), settings())) == 2
    assert len(select_detections(Candidates(boxes, scores), settings(NMS_TYPE="nms_normal_gpu"))) == 1


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("count", [0, 3])
def test_nothing_found_is_a_result(multi, count):
    found = select_detections(Candidates(torch.zeros(count, 7), torch.full((count, 2), -9.0)), settings(multi=multi))
    assert found.boxes.shape == (0, 7) and found.scores.shape == (0,)
    assert found.labels.dtype == torch.int64


def test_classes_that_are_known_already_stay():
    scene = Candidates(torch.tensor([A, B, C]), logits([0.6], [0.9], [0.7]), torch.tensor([3, 1, 2]))
    found = select_detections(scene, settings())
    assert found.labels.tolist() == [1, 2]
    torch.testing.assert_close(found.scores, torch.tensor([0.9, 0.7]))


def test_a_class_that_a_head_does_not_predict_is_never_found():
    """Even where every score is enough."""
    scene = Candidates(torch.tensor([A, C]), torch.tensor([[1.0, -torch.inf], [-torch.inf, -9.0]]))
    found = select_detections(scene, settings(multi=True, score=0.0))
    assert found.labels.tolist() == [1, 2]
    assert found.boxes[:, 0].tolist() == [0, 20]
