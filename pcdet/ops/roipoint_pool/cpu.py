"""The first points inside boxes, from the rows that a CPU kernel finds in each."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel
from pcdet.ops.roiaware_pool.cpu import rows_in_boxes
from pcdet.ops.roipoint_pool.reference import MARGIN
from pcdet.ops.threads import parallel_for

BOXES = 8  # boxes a piece of work covers


@Kernel
def _first_rows(first, last, rows, starts, counts, none, index):
    wanted = index.shape[1]
    for m in range(first, last):
        held = np.sort(rows[starts[m] : starts[m] + counts[m]])
        for k in range(wanted):
            if k < held.shape[0]:
                index[m, k] = held[k]
            else:
                index[m, k] = index[m, k - held.shape[0]] if held.shape[0] > 0 else none


def query(points: Tensor, boxes: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    """(B, N, 3), (B, M, 7) -> indices (B, M, S) int64, N in a box without a point; whether it has none (B, M)."""
    index = np.empty((*boxes.shape[:2], num_samples), dtype=np.int64)
    empty = np.empty(boxes.shape[:2], dtype=bool)
    for scene in range(len(points)):
        rows, starts, counts = rows_in_boxes(points[scene], boxes[scene], MARGIN)
        parallel_for(_first_rows, len(starts), rows, starts, counts, points.shape[1], index[scene], chunk=BOXES)
        empty[scene] = counts == 0
    return torch.from_numpy(index), torch.from_numpy(empty)
