"""Points in boxes as CPU kernels, over blocks of points that stay in the cache for all boxes."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.points_in_boxes.reference import box_table
from pcdet.ops.threads import parallel_for

BLOCK = 1024  # points
CHUNK = 8 * BLOCK  # points a piece of work covers


@device_function
def _load_block(points, start, stop):
    """(3, points) float64: each axis of some points as one run of numbers."""
    block = np.empty((3, stop - start))
    for n in range(stop - start):
        for axis in range(3):
            block[axis, n] = points[start + n, axis]
    return block


@device_function
def _inside_block(x, y, z, table, m, inside):
    """Write which points lie in box m; returns whether any does."""
    found = False  # no branch below, so that the loop becomes vector instructions
    for n in range(x.shape[0]):
        dx, dy, dz = x[n] - table[m, 0], y[n] - table[m, 1], z[n] - table[m, 2]
        in_x = abs(dx * table[m, 6] + dy * table[m, 7]) <= table[m, 3]
        in_y = abs(dy * table[m, 6] - dx * table[m, 7]) <= table[m, 4]
        inside[n] = in_x & in_y & (abs(dz) <= table[m, 5])
        found |= inside[n]
    return found


@Kernel
def _mask_of_points(start, stop, points, table, out):
    for low in range(start, stop, BLOCK):
        high = min(low + BLOCK, stop)
        block = _load_block(points, low, high)
        for m in range(table.shape[0]):
            _inside_block(block[0], block[1], block[2], table, m, out[m, low:high])


@Kernel
def _index_of_points(start, stop, points, table, out):
    inside = np.empty(BLOCK, dtype=np.bool_)
    for low in range(start, stop, BLOCK):
        high = min(low + BLOCK, stop)
        block = _load_block(points, low, high)
        out[low:high] = -1
        for m in range(table.shape[0] - 1, -1, -1):  # the lowest box writes last
            if _inside_block(block[0], block[1], block[2], table, m, inside):
                for n in range(high - low):
                    if inside[n]:
                        out[low + n] = m


def _array(points: Tensor) -> np.ndarray:
    """Only float32 and float64, contiguous: a kernel is compiled for each kind that it meets."""
    return (points if points.dtype == torch.float64 else points.float()).contiguous().numpy()


def mask(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (M, N) bool."""
    out = np.empty((len(boxes), len(points)), dtype=np.bool_)
    parallel_for(_mask_of_points, len(points), _array(points), box_table(boxes, margin).numpy(), out, chunk=CHUNK)
    return torch.from_numpy(out)


def index(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (N,) int64."""
    out = np.empty(len(points), dtype=np.int64)
    parallel_for(_index_of_points, len(points), _array(points), box_table(boxes, margin).numpy(), out, chunk=CHUNK)
    return torch.from_numpy(out)
