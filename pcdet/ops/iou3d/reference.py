"""Rotated overlap in plain torch, on any device that has float64.

Seen from the frame of box b, b is the rectangle [-hx, hx] x [-hy, hy]. Clamping the plane to it has the Jacobian 1
inside and 0 outside, so by Green's theorem the shared area is the integral of clamp(x) d clamp(y) once around box a.
On an edge the integrand is piecewise linear, with breaks where the edge crosses the lines of b's sides: no sorting of
vertices, no case for parallel edges, and the result is continuous in every coordinate.

OpenPCDet's overlap, at the end, is another matter: a polygon whose vertices are the crossings of two edges, then the
corners of either box that lie in the other one enlarged by ``MARGIN``, sorted by their angle around their mean. Every
operation is a float32 one in the order of the published kernel, so that the rounding is the same too (but for the last
bit of functions of angles).
"""

import torch
from torch import Tensor

NOISE = 1e-12  # an overlap below this part of the smaller box is rounding
PAIRS_AT_ONCE = 1 << 20  # bounds the memory of the intermediate tensors
POLYGONS_AT_ONCE = 1 << 17  # as well
MARGIN = 1e-2  # metres by which OpenPCDet enlarges a box before it asks which corners lie in it
PARALLEL = 1e-8  # square metres; below, it computes the crossing of two lines from their determinant
ROUNDING = 1e-6  # a generous bound of the rounding of a coordinate, relative to its distance from the origin


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


def boxes_collide_bev(boxes: Tensor, others: Tensor) -> Tensor:
    table = rectangles(boxes)
    apart = torch.eye(len(boxes), dtype=torch.bool, device=boxes.device)
    own = overlap(table, table).masked_fill(apart, 0.0)
    return torch.cat([own, overlap(table, rectangles(others))], dim=1).gt(0).any(dim=1)


def boxes_iou_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    a, b = rectangles(boxes_a), rectangles(boxes_b)
    return _ratio(overlap(a, b), a[:, None, 7] + b[None, :, 7])


def boxes_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    a, b = rectangles(boxes_a), rectangles(boxes_b)
    return _iou3d(overlap(a, b), a[:, None], b, heights(boxes_a)[:, None], heights(boxes_b))


def boxes_aligned_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _overlap(rectangles(boxes_a), rectangles(boxes_b))


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


def outlines(boxes: Tensor) -> Tensor:
    """(M, 7+) boxes -> (M, 16) float32: what OpenPCDet's overlap reads of a box.

    0-1 centre x y; 2-3 half sizes plus ``MARGIN``; 4-5 cos, sin of the heading; 6-13 x y of four corners,
    counter-clockwise; 14 area; 15 radius of a circle, so large that a pair whose circles do not meet has no vertex.
    """
    boxes = boxes[:, :7].float()
    centre, half = boxes[:, :2], boxes[:, 3:5] / 2
    heading = boxes[:, 6:].double()  # float32 functions differ from device to device, those rounded from float64 do not
    cos, sin = heading.cos().float(), heading.sin().float()
    low, high = (centre - half) - centre, (centre + half) - centre  # not half: the kernel rounds on the way
    x = torch.stack([low[:, 0], high[:, 0], high[:, 0], low[:, 0]], dim=1)  # (M, 4)
    y = torch.stack([low[:, 1], low[:, 1], high[:, 1], high[:, 1]], dim=1)
    corners = torch.stack([x * cos + y * -sin + centre[:, :1], x * sin + y * cos + centre[:, 1:]], dim=2)
    slack = ROUNDING * centre.abs().sum(dim=1, keepdim=True)  # (M, 1)
    radius = half.norm(dim=1, keepdim=True) + MARGIN + slack  # both of a pair together exceed sqrt(2) MARGIN
    area = boxes[:, 3:4] * boxes[:, 4:5]
    return torch.cat([centre, half + MARGIN, cos, sin, corners.flatten(1), area, radius], dim=1)


def boxes_overlap_published(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    a, b = outlines(boxes_a), outlines(boxes_b)
    shared = a.new_zeros(len(a), len(b))
    squared = (a[:, None, 0] - b[:, 0]).square() + (a[:, None, 1] - b[:, 1]).square()
    rows, columns = (squared < (a[:, None, 15] + b[:, 15]).square()).nonzero(as_tuple=True)  # (P,)
    for row, column in zip(rows.split(POLYGONS_AT_ONCE), columns.split(POLYGONS_AT_ONCE), strict=True):
        shared[row, column] = _polygon_overlap(a[row], b[column])
    return shared


def _polygon_overlap(a: Tensor, b: Tensor) -> Tensor:
    """(P, 16), (P, 16) outlines of pairs -> (P,) shared areas."""
    corners_a, corners_b = a[:, 6:14].unflatten(1, (4, 2)), b[:, 6:14].unflatten(1, (4, 2))  # (P, 4, 2)
    crossings, crosses = _edge_crossings(corners_a, corners_b)  # (P, 16, 2), (P, 16)
    corners = torch.stack([corners_b, corners_a], dim=2).flatten(1, 2)  # (P, 8, 2), in turn one of b and one of a
    within = torch.stack([_within(a, corners_b), _within(b, corners_a)], dim=2).flatten(1)  # (P, 8)
    return _fan_area(torch.cat([crossings, corners], dim=1), torch.cat([crosses, within], dim=1))


def _edge_crossings(corners_a: Tensor, corners_b: Tensor) -> tuple[Tensor, Tensor]:
    """Points where edge i of a crosses edge j of b, and whether it does. (P, 4, 2) twice -> (P, 16, 2), (P, 16)"""
    p0, q0 = corners_a[:, :, None], corners_b[:, None]  # (P, 4, 1, 2), (P, 1, 4, 2)
    p1, q1 = p0.roll(-1, dims=1), q0.roll(-1, dims=2)
    near = (torch.minimum(p0, p1) <= torch.maximum(q0, q1)) & (torch.minimum(q0, q1) <= torch.maximum(p0, p1))
    first, last = _turn(q0, p1, p0), _turn(q1, p1, p0)  # where b's edge begins and ends, left or right of a's
    sides = (first * -last > 0) & (_turn(p0, q1, q0) * _turn(q1, p1, q0) > 0)
    apart = last - first
    ordinary = (last[..., None] * q0 - first[..., None] * q1) / apart[..., None]
    parallel = apart.abs() <= PARALLEL
    special, determinant = _meeting_of_lines(p0, p1, q0, q1)
    crosses = near.all(dim=-1) & sides & ~(parallel & (determinant == 0))  # (P, 4, 4)
    return torch.where(parallel[..., None], special, ordinary).flatten(1, 2), crosses.flatten(1)


def _turn(p: Tensor, q: Tensor, origin: Tensor) -> Tensor:
    """Twice the signed area of the triangle origin, p, q. (..., 2) -> (...)"""
    p, q = p - origin, q - origin
    return p[..., 0] * q[..., 1] - q[..., 0] * p[..., 1]


def _meeting_of_lines(p0: Tensor, p1: Tensor, q0: Tensor, q1: Tensor) -> tuple[Tensor, Tensor]:
    """The point that two lines share, and the determinant it was divided by. -> (..., 2), (...)"""
    (a0, b0, c0), (a1, b1, c1) = _line(p0, p1), _line(q0, q1)
    determinant = a0 * b1 - a1 * b0
    return torch.stack([b0 * c1 - b1 * c0, a1 * c0 - a0 * c1], dim=-1) / determinant[..., None], determinant


def _line(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """a, b, c of the line a x + b y + c = 0 through two points."""
    return p[..., 1] - q[..., 1], q[..., 0] - p[..., 0], p[..., 0] * q[..., 1] - q[..., 0] * p[..., 1]


def _within(boxes: Tensor, points: Tensor) -> Tensor:
    """Whether points lie in the enlarged box of their row. (P, 16), (P, 4, 2) -> (P, 4)"""
    cos, sin = boxes[:, 4:5], boxes[:, 5:6]
    x, y = (points - boxes[:, None, :2]).unbind(dim=-1)
    along, across = x * cos + y * sin, x * -sin + y * cos
    return (along.abs() < boxes[:, 2:3]) & (across.abs() < boxes[:, 3:4])


def _fan_area(points: Tensor, valid: Tensor) -> Tensor:
    """Area of the polygon of the valid points, sorted around their mean. (P, V, 2), (P, V) -> (P,)"""
    points = torch.where(valid[..., None], points, 0.0)
    total = points[:, 0]  # (P, 2), added in order, as any other order rounds differently
    for k in range(1, points.shape[1]):
        total = total + points[:, k]
    count = valid.sum(dim=1, keepdim=True)  # (P, 1)
    x, y = (points - (total / count)[:, None]).unbind(dim=-1)
    order = torch.where(valid, torch.atan2(y, x), torch.inf).argsort(dim=1, stable=True)  # (P, V)
    points = points.gather(1, order[..., None].expand(-1, -1, 2))
    x, y = (points - points[:, :1]).unbind(dim=-1)  # (P, V)
    twice = x[:, :-1] * y[:, 1:] - y[:, :-1] * x[:, 1:]  # (P, V - 1)
    area = twice.new_zeros(len(twice))
    for k in range(twice.shape[1]):
        area = area + torch.where(k + 1 < count[:, 0], twice[:, k], 0.0)
    return area.abs() / 2
