"""Greedy non-maximum suppression by overlap seen from above."""

from collections.abc import Callable

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_boxes, require_columns, require_same_device


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


def nms_groups(
    boxes: Tensor,  # (G, M, 7+)
    scores: Tensor,  # (G, M)
    threshold: float,
    pre_max_size: int | None = None,
    post_max_size: int | None = None,
    rotated: bool = True,
    held: Tensor | None = None,  # (G,) int64
) -> tuple[Tensor, Tensor]:
    """Suppression within each of G groups, as the scenes of a batch: results of one size, so that no GPU is waited for.

    -> (G, P) int64 rows of the boxes that survive in each group, by descending score, -1 behind them; and how many
    they are, (G,) int64. P is ``post_max_size``, or M without it. Only the first ``held`` boxes of a group exist; all
    do without it. Within a group the result is that of :func:`nms_bev`, or of :func:`nms_normal_bev` if not
    ``rotated``.

    Raises ``ValueError`` for other shapes or two devices.
    """
    require_columns("boxes", boxes, "(G, M, 7+)", 7)
    groups, m = boxes.shape[:2]
    held = torch.full((groups,), m, dtype=torch.int64, device=boxes.device) if held is None else held
    require_same_device(boxes=boxes, scores=scores, held=held)
    if scores.shape != (groups, m) or held.shape != (groups,):
        raise ValueError(
            f"scores must be ({groups}, {m}) and held ({groups},), not {tuple(scores.shape)} and {tuple(held.shape)}"
        )
    boxes, limit = boxes.detach(), m if post_max_size is None else max(post_max_size, 0)
    absent = torch.arange(m, device=boxes.device) >= held.unsqueeze(1)  # (G, M)
    order = scores.detach().masked_fill(absent, -torch.inf).argsort(dim=1, descending=True, stable=True)
    order = order[:, :pre_max_size]  # (G, M')
    ranked = boxes.gather(1, order.unsqueeze(2).expand(-1, -1, boxes.shape[2]))
    kept, counts = _greedy_groups(ranked, held.clamp(max=order.shape[1]), float(threshold), limit, rotated)
    rows = torch.cat([order, order.new_full((groups, 1), -1)], dim=1)  # the last one is what -1 stands for
    return rows.gather(1, torch.where(kept >= 0, kept, order.shape[1])), counts


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


@library.custom_op("pcdet::nms_groups", mutates_args=())
def _greedy_groups(boxes: Tensor, held: Tensor, threshold: float, limit: int, rotated: bool) -> tuple[Tensor, Tensor]:
    return backend("nms", boxes.device.type).greedy_groups(boxes, held, threshold, limit, rotated)


@_greedy_groups.register_fake
def _(boxes: Tensor, held: Tensor, threshold: float, limit: int, rotated: bool) -> tuple[Tensor, Tensor]:
    return held.new_empty(len(held), limit), torch.empty_like(held)
