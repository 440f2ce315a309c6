"""Rotated overlap as CPU kernels: reject by circles, then the formula of ``reference.py`` on scalars."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.iou3d.reference import heights, rectangles
from pcdet.ops.threads import parallel_for

NOISE = 1e-12  # as in reference.py; a constant of another file would not renew the compiled kernels
ROWS = 16  # rows of the result a piece of work covers
PAIRS = 1024  # pairs of the same row a piece of work covers


@device_function
def _clamp(value, low, high):
    return min(max(value, low), high)


@device_function
def _edge(x, y, ex, ey, hx, hy):
    """Integral of clamp(x) d clamp(y) along the edge (x, y) + t (ex, ey), t in [0, 1]."""
    if ey == 0.0:
        return 0.0
    t, u = (-hy - y) / ey, (hy - y) / ey
    low, high = _clamp(min(t, u), 0.0, 1.0), _clamp(max(t, u), 0.0, 1.0)
    if ex == 0.0:
        return ey * (high - low) * _clamp(x, -hx, hx)
    t, u = (-hx - x) / ex, (hx - x) / ex
    first, second = _clamp(min(t, u), low, high), _clamp(max(t, u), low, high)
    x0, x1 = _clamp(x + low * ex, -hx, hx), _clamp(x + first * ex, -hx, hx)
    x2, x3 = _clamp(x + second * ex, -hx, hx), _clamp(x + high * ex, -hx, hx)
    return ey * ((x0 + x1) * (first - low) + (x1 + x2) * (second - first) + (x2 + x3) * (high - second)) / 2.0


@device_function
def _circles_meet(a, i, b, j):
    """Whether the circles around row i of the ``rectangles`` a and row j of b overlap: nearly all pairs stop here.

    Small enough to be inlined, which a function that held the rest as well would not be. False for a NaN.
    """
    dx, dy, reach = a[i, 0] - b[j, 0], a[i, 1] - b[j, 1], a[i, 6] + b[j, 6]
    return dx * dx + dy * dy < reach * reach


@device_function
def _shared_area(a, i, b, j):
    """Area that row i of the ``rectangles`` a and row j of b share, if their circles meet."""
    dx, dy = a[i, 0] - b[j, 0], a[i, 1] - b[j, 1]
    cos_b, sin_b, hx, hy = b[j, 4], b[j, 5], b[j, 2], b[j, 3]
    x, y = dx * cos_b + dy * sin_b, dy * cos_b - dx * sin_b
    cos, sin = a[i, 4] * cos_b + a[i, 5] * sin_b, a[i, 5] * cos_b - a[i, 4] * sin_b
    ux, uy = cos * a[i, 2], sin * a[i, 2]
    vx, vy = -sin * a[i, 3], cos * a[i, 3]
    area = (
        _edge(x + ux - vx, y + uy - vy, 2.0 * vx, 2.0 * vy, hx, hy)
        + _edge(x + ux + vx, y + uy + vy, -2.0 * ux, -2.0 * uy, hx, hy)
        + _edge(x - ux + vx, y - uy + vy, -2.0 * vx, -2.0 * vy, hx, hy)
        + _edge(x - ux - vx, y - uy - vy, 2.0 * ux, 2.0 * uy, hx, hy)
    )
    smaller = min(a[i, 7], b[j, 7])
    return min(area, smaller) if area > NOISE * smaller else 0.0


@Kernel
def _overlap_rows(start, stop, a, b, out):
    for i in range(start, stop):
        for j in range(b.shape[0]):
            out[i, j] = _shared_area(a, i, b, j) if _circles_meet(a, i, b, j) else 0.0


@Kernel
def _iou_rows(start, stop, a, b, out):
    for i in range(start, stop):
        for j in range(b.shape[0]):
            shared = _shared_area(a, i, b, j) if _circles_meet(a, i, b, j) else 0.0
            out[i, j] = shared / (a[i, 7] + b[j, 7] - shared) if shared > 0.0 else 0.0


@device_function
def _iou3d(a, i, b, j, heights_a, heights_b):
    """Row i of the ``rectangles`` a and row j of b, if their circles meet."""
    height = min(heights_a[i, 1], heights_b[j, 1]) - max(heights_a[i, 0], heights_b[j, 0])
    shared = _shared_area(a, i, b, j) * height if height > 0.0 else 0.0
    if not shared > 0.0:
        return 0.0
    volume_a = a[i, 7] * (heights_a[i, 1] - heights_a[i, 0])
    volume_b = b[j, 7] * (heights_b[j, 1] - heights_b[j, 0])
    return shared / (volume_a + volume_b - shared)


@Kernel
def _iou3d_rows(start, stop, a, b, heights_a, heights_b, out):
    for i in range(start, stop):
        for j in range(b.shape[0]):
            out[i, j] = _iou3d(a, i, b, j, heights_a, heights_b) if _circles_meet(a, i, b, j) else 0.0


@Kernel
def _aligned_iou3d_rows(start, stop, a, b, heights_a, heights_b, out):
    for i in range(start, stop):
        out[i] = _iou3d(a, i, b, i, heights_a, heights_b) if _circles_meet(a, i, b, i) else 0.0


@Kernel
def suppress(rects, threshold, limit):
    """Positions of the ``rectangles`` that no earlier kept one overlaps by more than ``threshold``, at most ``limit``.

    The kernel of ``pcdet.ops.nms``. It stands here because numba's cache watches only the file of a kernel itself.
    """
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
            if not suppressed[j] and _circles_meet(rects, i, rects, j):
                shared = _shared_area(rects, i, rects, j)
                # Rounded to float32 first, so that noise in the last bits does not decide at the threshold.
                suppressed[j] = shared > 0.0 and (np.float32(shared / (rects[i, 7] + rects[j, 7] - shared)) > threshold)
    return kept[:count]


def _rows(kernel: Kernel, boxes_a: Tensor, boxes_b: Tensor, *tables: np.ndarray) -> Tensor:
    out = np.empty((len(boxes_a), len(boxes_b)), dtype=np.float32)
    if out.size:
        parallel_for(
            kernel, len(out), rectangles(boxes_a).numpy(), rectangles(boxes_b).numpy(), *tables, out, chunk=ROWS
        )
    return torch.from_numpy(out)


def boxes_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _rows(_overlap_rows, boxes_a, boxes_b)


def boxes_iou_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _rows(_iou_rows, boxes_a, boxes_b)


def boxes_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _rows(_iou3d_rows, boxes_a, boxes_b, heights(boxes_a).numpy(), heights(boxes_b).numpy())


def boxes_aligned_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    tables = (rectangles(boxes_a), rectangles(boxes_b), heights(boxes_a), heights(boxes_b))
    out = torch.empty(len(boxes_a), dtype=torch.float32)
    parallel_for(_aligned_iou3d_rows, len(out), *(table.numpy() for table in tables), out.numpy(), chunk=PAIRS)
    return out
