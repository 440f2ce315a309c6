"""Rotated overlap as CPU kernels: reject by circles, then the formula of ``reference.py`` on scalars."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.iou3d.reference import NOISE, heights, rectangles
from pcdet.ops.threads import parallel_for

ROWS = 16  # rows of the result a piece of work covers


@device_function
def _clamp(value, low, high):
    return min(max(value, low), high)


@device_function
def _edge(x, y, ex, ey, hx, hy):
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
def rectangle_overlap(a, b):
    """Shared area of two rows of ``rectangles``."""
    dx, dy = a[0] - b[0], a[1] - b[1]
    reach = a[6] + b[6]
    if not dx * dx + dy * dy < reach * reach:  # written so that a NaN is rejected
        return 0.0
    x, y = dx * b[4] + dy * b[5], dy * b[4] - dx * b[5]
    cos, sin = a[4] * b[4] + a[5] * b[5], a[5] * b[4] - a[4] * b[5]
    ux, uy = cos * a[2], sin * a[2]
    vx, vy = -sin * a[3], cos * a[3]
    hx, hy = b[2], b[3]
    area = (
        _edge(x + ux - vx, y + uy - vy, 2.0 * vx, 2.0 * vy, hx, hy)
        + _edge(x + ux + vx, y + uy + vy, -2.0 * ux, -2.0 * uy, hx, hy)
        + _edge(x - ux + vx, y - uy + vy, -2.0 * vx, -2.0 * vy, hx, hy)
        + _edge(x - ux - vx, y - uy - vy, 2.0 * ux, 2.0 * uy, hx, hy)
    )
    smaller = min(a[7], b[7])
    return min(area, smaller) if area > NOISE * smaller else 0.0


@Kernel
def _overlap_rows(start, stop, a, b, out):
    for i in range(start, stop):
        for j in range(b.shape[0]):
            out[i, j] = rectangle_overlap(a[i], b[j])


@Kernel
def _iou_rows(start, stop, a, b, out):
    for i in range(start, stop):
        for j in range(b.shape[0]):
            shared = rectangle_overlap(a[i], b[j])
            out[i, j] = shared / (a[i, 7] + b[j, 7] - shared) if shared > 0.0 else 0.0


@Kernel
def _iou3d_rows(start, stop, a, b, heights_a, heights_b, out):
    for i in range(start, stop):
        volume_a = a[i, 7] * (heights_a[i, 1] - heights_a[i, 0])
        for j in range(b.shape[0]):
            out[i, j] = 0.0
            height = min(heights_a[i, 1], heights_b[j, 1]) - max(heights_a[i, 0], heights_b[j, 0])
            if height > 0.0:
                shared = rectangle_overlap(a[i], b[j]) * height
                if shared > 0.0:
                    out[i, j] = shared / (volume_a + b[j, 7] * (heights_b[j, 1] - heights_b[j, 0]) - shared)


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
