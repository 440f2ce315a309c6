"""Points in boxes in plain torch."""

import torch
from torch import Tensor


def box_table(boxes: Tensor, margin: float) -> Tensor:
    """(M, 7+) boxes -> (M, 8) float64: centre x y z, half sizes x y (with the margin) z, cos, sin of the heading."""
    boxes = boxes[:, :7].double()
    half = boxes[:, 3:6] / 2 + boxes.new_tensor([margin, margin, 0.0])
    return torch.cat([boxes[:, :3], half, boxes[:, 6:].cos(), boxes[:, 6:].sin()], dim=1)


def mask(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (M, N) bool."""
    table = box_table(boxes, margin)[:, None]  # (M, 1, 8)
    offset = points[None, :, :3].double() - table[..., :3]  # (M, N, 3)
    cos, sin = table[..., 6], table[..., 7]
    x = offset[..., 0] * cos + offset[..., 1] * sin
    y = offset[..., 1] * cos - offset[..., 0] * sin
    local = torch.stack([x, y, offset[..., 2]], dim=-1)  # (M, N, 3) in the frame of the box
    return (local.abs() <= table[..., 3:6]).all(dim=-1)


def index(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (N,) int64."""
    if len(boxes) == 0:
        return points.new_full((len(points),), -1, dtype=torch.int64)
    inside = mask(points, boxes, margin)  # (M, N)
    first = inside.to(torch.uint8).argmax(dim=0)  # argmax takes the first of equals
    return torch.where(inside.any(dim=0), first, -1)


def any_box(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (N,) bool."""
    return mask(points, boxes, margin).any(dim=0)
