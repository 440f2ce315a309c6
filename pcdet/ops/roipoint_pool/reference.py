"""The first points inside boxes, in plain torch."""

import torch
from torch import Tensor

from pcdet.ops.points_in_boxes import reference as points_in_boxes

MARGIN = 1e-5  # metres added to each side of a box in its x and y


def query(points: Tensor, boxes: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    """(B, N, 3), (B, M, 7) -> indices (B, M, S) int64, N in a box without a point; whether it has none (B, M)."""
    n = points.shape[1]
    index = torch.full((*boxes.shape[:2], num_samples), n, device=points.device)  # (B, M, S)
    empty = torch.ones(boxes.shape[:2], dtype=torch.bool, device=points.device)
    place = torch.arange(num_samples, device=points.device)
    for scene in range(len(points)):
        inside = points_in_boxes.mask(points[scene], boxes[scene], MARGIN)  # (M, N)
        rank = inside.cumsum(dim=1) - 1
        box, point = (inside & (rank < num_samples)).nonzero(as_tuple=True)
        index[scene, box, rank[box, point]] = point
        count = inside.sum(dim=1).clamp(max=num_samples)  # (M,)
        index[scene] = index[scene].gather(1, place % count.clamp(min=1)[:, None])
        empty[scene] = count == 0
    return index, empty
