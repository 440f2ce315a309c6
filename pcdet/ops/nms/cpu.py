"""Greedy suppression as CPU kernels: overlaps are computed when asked for, the full matrix never exists."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel
from pcdet.ops.iou3d.cpu import plain, suppress
from pcdet.ops.nms import reference
from pcdet.ops.nms.reference import uprights

ZERO = np.float32(0)
SMALLEST_UNION = np.float32(1e-8)  # as in reference.py; a constant of another file would not renew the compiled kernels


@Kernel
def _suppress_upright(a, threshold, limit):
    """Positions of the ``uprights`` that no earlier kept one overlaps by more than ``threshold``, at most ``limit``."""
    suppressed = np.zeros(a.shape[0], dtype=np.bool_)
    kept = np.empty(limit, dtype=np.int64)
    count = 0
    for i in range(a.shape[0]):
        if suppressed[i]:
            continue
        kept[count] = i
        count += 1
        if count == limit:
            break
        for j in range(i + 1, a.shape[0]):
            length = min(a[i, 2], a[j, 2]) - max(a[i, 0], a[j, 0])
            if suppressed[j] or not length > ZERO:
                continue
            shared = length * max(min(a[i, 3], a[j, 3]) - max(a[i, 1], a[j, 1]), ZERO)
            suppressed[j] = shared > ZERO and shared / max(a[i, 4] + a[j, 4] - shared, SMALLEST_UNION) > threshold
    return kept[:count]


def greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return torch.from_numpy(suppress(plain(boxes), np.float32(threshold), limit))


def greedy_normal(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return torch.from_numpy(_suppress_upright(uprights(boxes).numpy(), np.float32(threshold), limit))


greedy_groups = partial(reference.greedy_groups, one_group=(greedy, greedy_normal))
