"""Greedy suppression as a CPU kernel: overlaps are computed when asked for, the full matrix never exists."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.iou3d.cpu import suppress
from pcdet.ops.iou3d.reference import rectangles


def greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return torch.from_numpy(suppress(rectangles(boxes).numpy(), np.float32(threshold), limit))
