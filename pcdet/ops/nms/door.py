"""Greedy non-maximum suppression by overlap seen from above."""

from collections.abc import Callable

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
    result is the same on every run and device. A box is dropped if its IoU with a kept one, seen from above, is
    strictly above ``threshold``. So that the same boxes survive as in OpenPCDet, the shared area is that of its kernel
    (``pcdet.ops.iou3d.boxes_overlap_published``), not the exact one: boxes less than 1 cm apart overlap a little. Only
    the ``pre_max_size`` best boxes are considered and at most ``post_max_size`` kept; ``None`` means all. The indices
    refer to ``boxes`` and come by descending score. Scores must not be NaN.

    Raises ``ValueError`` for other shapes or two devices.
    """
    return _select(_greedy, boxes, scores, threshold, pre_max_size, post_max_size)


def nms_normal_bev(
    boxes: Tensor,  # (M, 7+)
    scores: Tensor,  # (M,)
    threshold: float,
    pre_max_size: int | None = None,
    post_max_size: int | None = None,
) -> Tensor:
    """As :func:`nms_bev`, with every heading taken as 0: dx along x, dy along y (OpenPCDet's ``nms_normal_gpu``).

    The shared area is the exact one, as in OpenPCDet.
    """
    return _select(_greedy_normal, boxes, scores, threshold, pre_max_size, post_max_size)


def _select(
    greedy: Callable[[Tensor, float, int], Tensor],
    boxes: Tensor,  # (M, 7+)
    scores: Tensor,  # (M,)
    threshold: float,
    pre_max_size: int | None,
    post_max_size: int | None,
) -> Tensor:
    require_boxes("boxes", boxes)
    require_same_device(boxes=boxes, scores=scores)
    if scores.shape != boxes.shape[:1]:
        raise ValueError(f"scores must have the shape ({len(boxes)},), one a box, not {tuple(scores.shape)}")
    order = scores.detach().argsort(descending=True, stable=True)[:pre_max_size]  # (M',)
    limit = len(order) if post_max_size is None else min(post_max_size, len(order))
    if limit <= 0:
        return order[:0]
    return order[greedy(boxes.detach()[order], float(threshold), limit)]


@library.custom_op("pcdet::nms_bev", mutates_args=())
def _greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return backend("nms", boxes.device.type).greedy(boxes, threshold, limit)


@library.custom_op("pcdet::nms_normal_bev", mutates_args=())
def _greedy_normal(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return backend("nms", boxes.device.type).greedy_normal(boxes, threshold, limit)


@_greedy_normal.register_fake
@_greedy.register_fake
def _(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return boxes.new_empty(library.get_ctx().new_dynamic_size(), dtype=torch.int64)
