"""The first points inside boxes, from the rows that a CPU kernel finds in each."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.roiaware_pool.cpu import rows_in_boxes
from pcdet.ops.roipoint_pool.reference import MARGIN


def query(points: Tensor, boxes: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    """(B, N, 3), (B, M, 7) -> indices (B, M, S) int64, N in a box without a point; whether it has none (B, M)."""
    index = np.empty((*boxes.shape[:2], num_samples), dtype=np.int64)
    empty = np.empty(boxes.shape[:2], dtype=bool)
    place = np.arange(num_samples)
    for scene in range(len(points)):
        rows, starts = rows_in_boxes(points[scene], boxes[scene], MARGIN)
        counts = np.minimum(np.diff(starts), num_samples)  # (M,)
        rows = np.append(rows, points.shape[1])
        taken = starts[:-1, None] + place % np.maximum(counts, 1)[:, None]  # (M, S)
        empty[scene] = counts == 0
        taken[empty[scene]] = len(rows) - 1
        index[scene] = rows[taken]
    return torch.from_numpy(index), torch.from_numpy(empty)
