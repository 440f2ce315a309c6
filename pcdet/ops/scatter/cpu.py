"""Pooling over groups of rows as CPU kernels that read each row where it lies.

Forward, a piece of work owns some groups. Backward, it owns some channels, since groups may share rows.
"""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel
from pcdet.ops.threads import parallel_for

GROUPS = 512  # groups a piece of work covers
CHANNELS = 64  # channels a piece of work covers: whole cache lines, so that threads do not share one


@Kernel
def _sort_rows(segment, rows, start):
    """Counting sort: two passes over the rows."""
    start[:] = 0
    for n in range(segment.shape[0]):
        start[segment[n] + 1] += 1
    for s in range(1, start.shape[0]):
        start[s] += start[s - 1]
    place = start.copy()
    for n in range(segment.shape[0]):
        rows[place[segment[n]]] = n
        place[segment[n]] += 1


@Kernel
def _max_of_groups(first, last, features, rows, start, pooled, source):
    channels = features.shape[1]
    best, better = np.empty(channels, dtype=features.dtype), np.empty(channels, dtype=np.int32)
    who = np.empty(channels, dtype=np.int32)
    for s in range(first, last):
        begin, end = start[s], start[s + 1]
        best[:] = -np.inf if end > begin else 0
        who[:] = rows[begin] if end > begin else -1
        for k in range(begin, end):
            n = np.int32(rows[k])
            row = features[n]
            for c in range(channels):  # three loops without a branch become vector instructions
                better[c] = row[c] > best[c]
            for c in range(channels):
                best[c] = np.maximum(best[c], row[c])  # hands a NaN on
            for c in range(channels):
                who[c] += (n - who[c]) * better[c]
        pooled[s] = best
        source[s] = who


@Kernel
def _mean_of_groups(first, last, features, rows, start, pooled):
    channels = features.shape[1]
    total = np.empty(channels, dtype=features.dtype)
    for s in range(first, last):
        total[:] = 0
        for k in range(start[s], start[s + 1]):
            row = features[rows[k]]
            for c in range(channels):
                total[c] += row[c]
        pooled[s] = total / features.dtype.type(max(start[s + 1] - start[s], 1))


@Kernel
def _max_to_rows(first, last, grad, source, out):
    for s in range(grad.shape[0]):
        for c in range(first, last):
            n = source[s, c]
            if n >= 0:
                out[n, c] += grad[s, c]


@Kernel
def _mean_to_rows(first, last, grad, rows, start, out):
    for s in range(grad.shape[0]):
        share = grad[s, first:last] / grad.dtype.type(max(start[s + 1] - start[s], 1))
        for k in range(start[s], start[s + 1]):
            row = out[rows[k], first:last]
            for c in range(share.shape[0]):
                row[c] += share[c]


def rows_by_segment(segment: Tensor, num_segments: int) -> tuple[Tensor, Tensor]:
    rows, start = np.empty(len(segment), dtype=np.int64), np.empty(num_segments + 1, dtype=np.int64)
    _sort_rows(segment.contiguous().numpy(), rows, start)
    return torch.from_numpy(rows), torch.from_numpy(start)


def _arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(tensor.contiguous().numpy() for tensor in tensors)


def pool_max(features: Tensor, rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    pooled = features.new_empty(len(start) - 1, features.shape[1])
    source = torch.empty_like(pooled, dtype=torch.int32)
    arrays = _arrays(features, rows, start, pooled, source)
    parallel_for(_max_of_groups, len(pooled), *arrays, chunk=GROUPS)
    return pooled, source


def pool_mean(features: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    pooled = features.new_empty(len(start) - 1, features.shape[1])
    parallel_for(_mean_of_groups, len(pooled), *_arrays(features, rows, start, pooled), chunk=GROUPS)
    return pooled


def pool_max_backward(grad: Tensor, source: Tensor, _rows: Tensor, _start: Tensor, num_rows: int) -> Tensor:
    out = grad.new_zeros(num_rows, grad.shape[1])
    parallel_for(_max_to_rows, grad.shape[1], *_arrays(grad, source, out), chunk=CHANNELS)
    return out


def pool_mean_backward(grad: Tensor, rows: Tensor, start: Tensor, num_rows: int) -> Tensor:
    out = grad.new_zeros(num_rows, grad.shape[1])
    parallel_for(_mean_to_rows, grad.shape[1], *_arrays(grad, rows, start, out), chunk=CHANNELS)
    return out
