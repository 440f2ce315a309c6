"""Greedy non-maximum suppression by overlap seen from above."""

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_boxes, require_same_device


def nms_bev(
    boxes: Tensor,  # (M, 7+)
    scores: Tensor,  # (M,)
    threshold: float,
    pre_max_size: int | None = None,
    post_max_size: int | None = None,
) -> Tensor:
    """Indices of the boxes that no better-scored kept box overlaps by more than ``threshold``. -> (K,) int64.

    Boxes are visited by descending score, equal scores by ascending index (OpenPCDet leaves their order open), so the
    result is the same on every run and device. A box is dropped if its rotated BEV IoU (see
    ``pcdet.ops.iou3d.boxes_iou_bev``) with a kept one is strictly above ``threshold``. Only the ``pre_max_size`` best
    boxes are considered and at most ``post_max_size`` kept; ``None`` means all. The indices refer to ``boxes`` and
    come by descending score. Scores must not be NaN.

    Raises ``ValueError`` for other shapes or two devices.
    """
    require_boxes("boxes", boxes)
    require_same_device(boxes=boxes, scores=scores)
    if scores.shape != boxes.shape[:1]:
        raise ValueError(f"scores must have the shape ({len(boxes)},), one a box, not {tuple(scores.shape)}")
    order = scores.detach().argsort(descending=True, stable=True)[:pre_max_size]  # (M',)
    limit = len(order) if post_max_size is None else min(post_max_size, len(order))
    if limit <= 0:
        return order[:0]
    return order[_greedy(boxes.detach()[order], float(threshold), limit)]


def nms_normal_bev(
    boxes: Tensor,  # (M, 7+)
    scores: Tensor,  # (M,)
    threshold: float,
    pre_max_size: int | None = None,
    post_max_size: int | None = None,
) -> Tensor:
    """As :func:`nms_bev`, with every heading taken as 0: dx along x, dy along y (OpenPCDet's ``nms_normal_gpu``)."""
    require_boxes("boxes", boxes)
    upright = torch.cat([boxes[:, :6], torch.zeros_like(boxes[:, :1])], dim=1)  # (M, 7)
    return nms_bev(upright, scores, threshold, pre_max_size, post_max_size)


@library.custom_op("pcdet::nms_bev", mutates_args=())
def _greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return backend("nms", boxes.device.type).greedy(boxes, threshold, limit)


@_greedy.register_fake
def _(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return boxes.new_empty(library.get_ctx().new_dynamic_size(), dtype=torch.int64)
