"""Overlap of boxes as a loss."""

import torch
from torch import Tensor


def distance_iou(boxes: Tensor, gt_boxes: Tensor) -> Tensor:
    """Overlap less normalised distance of centres (Zheng et al., "Distance-IoU Loss", eq. 5-7). (M, 7+) x 2 -> (M,)

    Headings count as 0: dx lies along x and dy along y. In [-1, 1], and 1 for equal boxes; differentiable.
    """
    low, high = _ends(boxes)  # (M, 3)
    gt_low, gt_high = _ends(gt_boxes)
    inner = (torch.minimum(high, gt_high) - torch.maximum(low, gt_low)).clamp(min=0).prod(dim=1)
    union = boxes[:, 3:6].prod(dim=1) + gt_boxes[:, 3:6].prod(dim=1) - inner
    hull = torch.maximum(high, gt_high) - torch.minimum(low, gt_low)  # (M, 3)
    distance = (boxes[:, :3] - gt_boxes[:, :3]).square().sum(dim=1) / hull.square().sum(dim=1)
    return (inner / union - distance).clamp(-1, 1)


def _ends(boxes: Tensor) -> tuple[Tensor, Tensor]:
    half = boxes[:, 3:6] / 2
    return boxes[:, :3] - half, boxes[:, :3] + half
