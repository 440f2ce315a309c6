"""Greedy non-maximum suppression by distance seen from above (the "circle NMS" of CenterPoint's published code)."""

from torch import Tensor

from pcdet.ops.doors import require_same_device
from pcdet.ops.nms.reference import keep_first


def nms_circle(
    centres: Tensor,  # (M, 2) x, y in metres
    scores: Tensor,  # (M,)
    threshold: float,
    pre_max_size: int | None = None,
    post_max_size: int | None = None,
) -> Tensor:
    """Indices of the centres whose squared distance from every better-scored kept one is above ``threshold`` (square
    metres). -> (K,) int64

    Order, limits and the treatment of equal scores are those of :func:`pcdet.ops.nms.nms_bev`. Plain torch on any
    device, for the few hundred centres of a scene: all distances are computed at once.

    Raises ``ValueError`` for other shapes or two devices.
    """
    require_same_device(centres=centres, scores=scores)
    if centres.ndim != 2 or centres.shape[1] != 2 or scores.shape != centres.shape[:1]:
        raise ValueError(f"expected centres (M, 2) and scores (M,), not {tuple(centres.shape)}, {tuple(scores.shape)}")
    order = scores.detach().argsort(descending=True, stable=True)[:pre_max_size]  # (M',)
    ranked = centres.detach()[order].float()
    squared = (ranked.unsqueeze(1) - ranked).square().sum(dim=2)  # (M', M')
    limit = len(order) if post_max_size is None else max(post_max_size, 0)
    return order[keep_first(squared <= threshold, limit)]
