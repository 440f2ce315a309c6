"""Greedy suppression in plain torch, from the full matrix of overlaps."""

import torch
from torch import Tensor

from pcdet.ops.iou3d.reference import boxes_iou_bev


def greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    """(M, 7+) boxes by descending score -> (K,) int64 positions of those kept, at most ``limit``."""
    suppresses = (boxes_iou_bev(boxes, boxes) > threshold).cpu()  # (M, M)
    suppressed = torch.zeros(len(boxes), dtype=torch.bool)
    kept: list[int] = []
    for i in range(len(boxes)):
        if not suppressed[i]:
            kept.append(i)
            suppressed |= suppresses[i]
        if len(kept) == limit:
            break
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device)
