"""Greedy suppression in plain torch, from the full matrix of overlaps."""

import torch
from torch import Tensor

from pcdet.ops.iou3d.reference import boxes_iou_bev


def greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    """(M, 7+) boxes by descending score -> (K,) int64 positions of those kept, at most ``limit``."""
    return keep_first(boxes_iou_bev(boxes, boxes) > threshold, limit)


def keep_first(suppresses: Tensor, limit: int) -> Tensor:
    """Positions of those that no kept one before them suppresses, at most ``limit``. (M, M) bool -> (K,) int64"""
    table = suppresses.cpu()
    suppressed = torch.zeros(len(table), dtype=torch.bool)
    kept: list[int] = []
    for i in range(len(table)):
        if len(kept) == limit:
            break
        if not suppressed[i]:
            kept.append(i)
            suppressed |= table[i]
    return torch.tensor(kept, dtype=torch.int64, device=suppresses.device)
