"""From scored boxes to detections: score threshold and non-maximum suppression."""

from typing import Literal, TypedDict

import torch
from torch import Tensor

from pcdet.models.candidates import Candidates
from pcdet.ops.nms import nms_bev, nms_normal_bev
from pcdet.structures.detections import Detections


class NmsConfig(TypedDict, total=False):
    """Suppression: by class or of all classes together, rotated or upright overlap, most boxes before and after.

    USE_FAST_NMS and SCORE_THRESH are not read here: OpenPCDet's YAML files have them, its code does not heed them.
    """

    MULTI_CLASSES_NMS: bool
    NMS_TYPE: Literal["nms_gpu", "nms_normal_gpu"]
    NMS_THRESH: float
    NMS_PRE_MAXSIZE: int
    NMS_POST_MAXSIZE: int
    USE_FAST_NMS: bool
    SCORE_THRESH: float


class PostProcessing(TypedDict, total=False):
    """What becomes of the boxes of a scene. RECALL_THRESH_LIST and EVAL_METRIC are for the evaluation."""

    RECALL_THRESH_LIST: list[float]
    EVAL_METRIC: Literal["kitti", "waymo"]
    SCORE_THRESH: float
    OUTPUT_RAW_SCORE: bool
    MULTI_CLASSES_NMS: bool
    NMS_CONFIG: NmsConfig


def select_detections(scene: Candidates, settings: PostProcessing) -> Detections:
    """The boxes of one scene that remain, by descending score.

    Scores are sigmoids of the logits; those below SCORE_THRESH are dropped. Without MULTI_CLASSES_NMS a box has its
    best class, or the one it had before, and all classes suppress each other; with it every class is suppressed by
    itself and the detections come class by class. A box may then be found in several classes, unless it had one before.
    OUTPUT_RAW_SCORE reports logits instead of scores.
    """
    nms, least = settings["NMS_CONFIG"], settings.get("SCORE_THRESH", 0.0)
    raw = settings.get("OUTPUT_RAW_SCORE", False)
    if nms.get("MULTI_CLASSES_NMS", False):
        logits = scene.logits if scene.labels is None else _in_columns(scene.logits.amax(dim=1), scene.labels)
        scores = logits.sigmoid()  # (A, K)
        parts = [suppress(scene.boxes, scores[:, k], nms, least, logits[:, k]) for k in range(scores.shape[1])]
        keep = torch.cat(parts)
        classes = torch.cat([torch.full_like(part, k) for k, part in enumerate(parts)])
        found = (logits if raw else scores)[keep, classes]
        return Detections(scene.boxes[keep], found, classes + 1)
    best, classes = scene.logits.max(dim=1)  # (A,)
    labels = classes + 1 if scene.labels is None else scene.labels
    scores = best.sigmoid()
    keep = suppress(scene.boxes, scores, nms, least)
    return Detections(scene.boxes[keep], best[keep] if raw else scores[keep], labels[keep])


def _in_columns(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit (A,) of each box in the column of its class, -inf in all others. (A, K)"""
    columns = logits.new_full((len(labels), int(labels.max()) if len(labels) else 1), -torch.inf)
    return columns.scatter_(1, (labels - 1).unsqueeze(1), logits.unsqueeze(1))


def suppress(
    boxes: Tensor, scores: Tensor, nms: NmsConfig, least: float | None = None, logits: Tensor | None = None
) -> Tensor:
    """Indices (M,) of the boxes (A, 7+) that survive, by descending score (A,).

    Boxes below the score ``least`` take no part, nor those whose ``logits`` are -inf.
    """
    allowed = torch.ones_like(scores, dtype=torch.bool) if least is None else scores >= least
    if logits is not None:
        allowed = allowed & (logits > -torch.inf)
    candidates = allowed.nonzero()[:, 0]
    function = nms_normal_bev if nms.get("NMS_TYPE") == "nms_normal_gpu" else nms_bev
    keep = function(
        boxes[candidates],
        scores[candidates],
        nms["NMS_THRESH"],
        pre_max_size=nms.get("NMS_PRE_MAXSIZE"),
        post_max_size=nms.get("NMS_POST_MAXSIZE"),
    )
    return candidates[keep]
