"""Rotated overlap in plain torch, on any device that has float64.

Seen from the frame of box b, b is the rectangle [-hx, hx] x [-hy, hy]. Clamping the plane to it has the Jacobian 1
inside and 0 outside, so by Green's theorem the shared area is the integral of clamp(x) d clamp(y) once around box a.
On an edge the integrand is piecewise linear, with breaks where the edge crosses the lines of b's sides: no sorting of
vertices, no case for parallel edges, and the result is continuous in every coordinate.
"""

import torch
from torch import Tensor

NOISE = 1e-12  # an overlap below this part of the smaller box is rounding
PAIRS_AT_ONCE = 1 << 20  # bounds the memory of the intermediate tensors


def rectangles(boxes: Tensor) -> Tensor:
    """(M, 7+) boxes -> (M, 8) float64: centre x y, half sizes x y, cos, sin of the heading, radius, area.

    A box with a size that is not above 0 (or NaN) becomes a point of area 0.
    """
    boxes = boxes[:, :7].double()
    valid = (boxes[:, 3:5] > 0).all(dim=1, keepdim=True)
    half = torch.where(valid, boxes[:, 3:5] / 2, 0.0)  # (M, 2)
    cos, sin = boxes[:, 6:].cos(), boxes[:, 6:].sin()
    radius, area = half.norm(dim=1, keepdim=True), 4 * half.prod(dim=1, keepdim=True)
    return torch.cat([boxes[:, :2], half, cos, sin, radius, area], dim=1)


def heights(boxes: Tensor) -> Tensor:
    """(M, 7+) boxes -> (M, 2) float64: bottom and top; both are the centre if the height is not above 0."""
    z, half = boxes[:, 2].double(), boxes[:, 5].double() / 2
    half = torch.where(half > 0, half, 0.0)
    return torch.stack([z - half, z + half], dim=1)


def boxes_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return overlap(rectangles(boxes_a), rectangles(boxes_b)).float()


def boxes_iou_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    a, b = rectangles(boxes_a), rectangles(boxes_b)
    return _ratio(overlap(a, b), a[:, None, 7] + b[None, :, 7])


def boxes_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    a, b = rectangles(boxes_a), rectangles(boxes_b)
    return _iou3d(overlap(a, b), a[:, None], b, heights(boxes_a)[:, None], heights(boxes_b))


def boxes_aligned_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    a, b = rectangles(boxes_a), rectangles(boxes_b)
    return _iou3d(_overlap(a, b), a, b, heights(boxes_a), heights(boxes_b))


def _iou3d(area: Tensor, a: Tensor, b: Tensor, heights_a: Tensor, heights_b: Tensor) -> Tensor:
    """From shared areas (...,), rectangles (..., 8) and heights (..., 2) that broadcast against each other."""
    (low_a, high_a), (low_b, high_b) = heights_a.unbind(-1), heights_b.unbind(-1)
    shared = torch.minimum(high_a, high_b) - torch.maximum(low_a, low_b)
    shared = torch.where(shared > 0, shared, 0.0)
    return _ratio(area * shared, a[..., 7] * (high_a - low_a) + b[..., 7] * (high_b - low_b))


def _ratio(shared: Tensor, total: Tensor) -> Tensor:
    """Intersection over union of shared and total sizes, float32."""
    return torch.where(shared > 0, shared / (total - shared), 0.0).float()


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """(N, 8), (M, 8) rectangles -> (N, M) float64 shared areas."""
    rows = max(1, PAIRS_AT_ONCE // max(1, len(b)))
    parts = [_overlap(part[:, None], b[None]) for part in a.split(rows)]
    return torch.cat(parts) if parts else a.new_zeros(0, len(b))


def _overlap(a: Tensor, b: Tensor) -> Tensor:
    """Shared areas of rectangles that broadcast against each other, as (N, 1, 8), (1, M, 8) -> (N, M)."""
    cos_b, sin_b, hx, hy = b[..., 4], b[..., 5], b[..., 2], b[..., 3]
    dx, dy = a[..., 0] - b[..., 0], a[..., 1] - b[..., 1]
    x, y = dx * cos_b + dy * sin_b, dy * cos_b - dx * sin_b  # centre of a in the frame of b
    cos = a[..., 4] * cos_b + a[..., 5] * sin_b
    sin = a[..., 5] * cos_b - a[..., 4] * sin_b
    ux, uy = cos * a[..., 2], sin * a[..., 2]  # half length of a
    vx, vy = -sin * a[..., 3], cos * a[..., 3]  # half width of a
    area = (
        _edge(x + ux - vx, y + uy - vy, 2 * vx, 2 * vy, hx, hy)
        + _edge(x + ux + vx, y + uy + vy, -2 * ux, -2 * uy, hx, hy)
        + _edge(x - ux + vx, y - uy + vy, -2 * vx, -2 * vy, hx, hy)
        + _edge(x - ux - vx, y - uy - vy, 2 * ux, 2 * uy, hx, hy)
    )
    smaller = torch.minimum(a[..., 7], b[..., 7])
    near = dx * dx + dy * dy < (a[..., 6] + b[..., 6]) ** 2
    return torch.where(near & (area > NOISE * smaller), torch.minimum(area, smaller), 0.0)


def _edge(x: Tensor, y: Tensor, ex: Tensor, ey: Tensor, hx: Tensor, hy: Tensor) -> Tensor:
    """Integral of clamp(x) d clamp(y) along the edge (x, y) + t (ex, ey), t in [0, 1]."""
    low, high = _crossings(y, ey, hy, x.new_zeros(()), x.new_ones(()))
    first, second = _crossings(x, ex, hx, low, high)
    at = [torch.clamp(x + t * ex, -hx, hx) for t in (low, first, second, high)]
    twice = (at[0] + at[1]) * (first - low) + (at[1] + at[2]) * (second - first) + (at[2] + at[3]) * (high - second)
    return ey * twice / 2


def _crossings(x: Tensor, ex: Tensor, hx: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Where, within [low, high], x + t ex enters and leaves [-hx, hx]; any two values there if ex is 0."""
    step = torch.where(ex == 0, 1.0, ex)
    t, u = (-hx - x) / step, (hx - x) / step
    return torch.clamp(torch.minimum(t, u), low, high), torch.clamp(torch.maximum(t, u), low, high)
