"""Greedy suppression as a CPU kernel: overlaps are computed when asked for, the full matrix never exists."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel
from pcdet.ops.iou3d.cpu import circles_meet, shared_area
from pcdet.ops.iou3d.reference import rectangles


@Kernel
def _greedy(rects, threshold, limit):
    suppressed = np.zeros(rects.shape[0], dtype=np.bool_)
    kept = np.empty(limit, dtype=np.int64)
    count = 0
    for i in range(rects.shape[0]):
        if suppressed[i]:
            continue
        kept[count] = i
        count += 1
        if count == limit:
            break
        for j in range(i + 1, rects.shape[0]):
            if not suppressed[j] and circles_meet(rects, i, rects, j):
                shared = shared_area(rects, i, rects, j)
                # Rounded to float32 first, so that noise in the last bits does not decide at the threshold.
                suppressed[j] = shared > 0.0 and (np.float32(shared / (rects[i, 7] + rects[j, 7] - shared)) > threshold)
    return kept[:count]


def greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return torch.from_numpy(_greedy(rectangles(boxes).numpy(), np.float32(threshold), limit))
