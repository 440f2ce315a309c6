"""Greedy suppression in plain torch, from the full matrix of overlaps."""

from collections.abc import Callable

import torch
from torch import Tensor

from pcdet.ops.iou3d.reference import boxes_overlap_published

Greedy = Callable[[Tensor, float, int], Tensor]
SMALLEST_UNION = 1e-8  # square metres; an overlap is divided by no less


def greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    """(M, 7+) boxes by descending score -> (K,) int64 positions of those kept, at most ``limit``."""
    return keep_first(suppressions(boxes, threshold), limit)


def suppressions(boxes: Tensor, threshold: float) -> Tensor:
    """Which boxes overlap by more than the threshold. (M, 7+) -> (M, M) bool"""
    boxes = boxes.float()
    return _above(boxes_overlap_published(boxes, boxes), boxes[:, 3] * boxes[:, 4], threshold)


def greedy_normal(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    """As :func:`greedy`, with every heading taken as 0."""
    low_x, low_y, high_x, high_y, area = uprights(boxes).unbind(dim=1)
    length = torch.minimum(high_x[:, None], high_x) - torch.maximum(low_x[:, None], low_x)  # (M, M)
    width = torch.minimum(high_y[:, None], high_y) - torch.maximum(low_y[:, None], low_y)
    return keep_first(_above(length.clamp(min=0) * width.clamp(min=0), area, threshold), limit)


def greedy_groups(
    boxes: Tensor,  # (G, M, 7+) by descending score
    held: Tensor,  # (G,) how many of them exist
    threshold: float,
    limit: int,
    rotated: bool,
    one_group: tuple[Greedy, Greedy] = (greedy, greedy_normal),
) -> tuple[Tensor, Tensor]:
    """-> (G, limit) int64 positions of those kept in each group, -1 behind them; how many they are, (G,) int64."""
    kept, counts = held.new_full((len(boxes), limit), -1), torch.zeros_like(held)
    for group, count in enumerate(held.tolist()):
        if min(count, limit) > 0:
            found = one_group[0 if rotated else 1](boxes[group, :count], threshold, min(count, limit))
            kept[group, : len(found)], counts[group] = found, len(found)
    return kept, counts


def uprights(boxes: Tensor) -> Tensor:
    """(M, 7+) boxes -> (M, 5) float32 of the boxes with heading 0: least x y, largest x y, area."""
    boxes = boxes.float()
    centre, half = boxes[:, :2], boxes[:, 3:5] / 2
    return torch.cat([centre - half, centre + half, boxes[:, 3:4] * boxes[:, 4:5]], dim=1)


def _above(shared: Tensor, area: Tensor, threshold: float) -> Tensor:
    """Where boxes overlap and their IoU is above the threshold. (M, M) shared areas, (M,) areas -> (M, M) bool"""
    union = (area[:, None] + area - shared).clamp(min=SMALLEST_UNION)
    return (shared > 0) & (shared / union > threshold)


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
