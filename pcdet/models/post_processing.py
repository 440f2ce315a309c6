"""From scored boxes to detections: score threshold and non-maximum suppression."""

from typing import Literal, TypedDict

import torch
from torch import Tensor

from pcdet.ops.nms import nms_bev, nms_normal_bev
from pcdet.structures.detections import Detections


class NmsConfig(TypedDict, total=False):
    """Suppression: by class or of all classes together, rotated or upright overlap, most boxes before and after."""

    MULTI_CLASSES_NMS: bool
    NMS_TYPE: Literal["nms_gpu", "nms_normal_gpu"]
    NMS_THRESH: float
    NMS_PRE_MAXSIZE: int
    NMS_POST_MAXSIZE: int


class PostProcessing(TypedDict, total=False):
    """What becomes of the boxes of a scene. RECALL_THRESH_LIST and EVAL_METRIC are for the evaluation."""

    RECALL_THRESH_LIST: list[float]
    EVAL_METRIC: Literal["kitti"]
    SCORE_THRESH: float
    OUTPUT_RAW_SCORE: bool
    MULTI_CLASSES_NMS: bool
    NMS_CONFIG: NmsConfig


def select_detections(boxes: Tensor, logits: Tensor, settings: PostProcessing) -> Detections:
    """The boxes of one scene that remain. (A, 7), (A, K) -> :class:`Detections` by descending score.

    Scores are sigmoids of the logits; those below SCORE_THRESH are dropped. Without MULTI_CLASSES_NMS a box has its
    best class and all classes suppress each other; with it every class is suppressed by itself, a box may be found
    in several classes, and the detections come class by class. OUTPUT_RAW_SCORE reports logits instead of scores.
    """
    nms = settings["NMS_CONFIG"]
    if nms.get("MULTI_CLASSES_NMS", False):
        scores = logits.sigmoid()  # (A, K)
        parts = [_suppress(boxes, scores[:, k], settings) for k in range(logits.shape[1])]
        keep = torch.cat(parts)
        label = torch.cat([torch.full_like(part, k) for k, part in enumerate(parts)])
    else:
        best, classes = logits.max(dim=1)  # (A,)
        keep = _suppress(boxes, best.sigmoid(), settings)
        label = classes[keep]
    found = logits[keep, label]
    return Detections(boxes[keep], found if settings.get("OUTPUT_RAW_SCORE", False) else found.sigmoid(), label + 1)


def _suppress(boxes: Tensor, scores: Tensor, settings: PostProcessing) -> Tensor:
    """Indices (M,) of the boxes that survive, by descending score."""
    nms = settings["NMS_CONFIG"]
    candidates = (scores >= settings.get("SCORE_THRESH", 0.0)).nonzero()[:, 0]
    function = nms_normal_bev if nms.get("NMS_TYPE") == "nms_normal_gpu" else nms_bev
    keep = function(
        boxes[candidates],
        scores[candidates],
        nms["NMS_THRESH"],
        pre_max_size=nms.get("NMS_PRE_MAXSIZE"),
        post_max_size=nms.get("NMS_POST_MAXSIZE"),
    )
    return candidates[keep]
