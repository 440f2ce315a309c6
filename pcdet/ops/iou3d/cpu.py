"""Rotated overlap as CPU kernels: reject by circles, then the formulas of ``reference.py`` on scalars."""

import math

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.iou3d.reference import heights, rectangles
from pcdet.ops.threads import parallel_for

# Constants of another file would not renew the compiled kernels, so those of reference.py stand here as well. What is
# computed in float32 takes only float32 constants: with a float64 operand numba would go on in float64.
NOISE = 1e-12
ZERO, TWO = np.float32(0), np.float32(2)
MARGIN, PARALLEL, ROUNDING = np.float32(1e-2), np.float32(1e-8), np.float32(1e-6)
SMALLEST_UNION = np.float32(1e-8)  # square metres; an overlap is divided by no less
VERTICES = 24  # at most: 16 crossings of edges and 8 corners
SHRINK = 5e-3  # metres between a box and its inner one: far more than rounding
DEEP = 0.06  # metres; see _verdict
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


@device_function
def _rectangle(boxes, i, out):
    """Write row i of the ``rectangles`` of boxes."""
    half_x, half_y, heading = boxes[i, 3] / 2.0, boxes[i, 4] / 2.0, boxes[i, 6]
    if not (half_x > 0.0 and half_y > 0.0):  # so is a NaN
        half_x, half_y = 0.0, 0.0
    out[i, 0], out[i, 1], out[i, 2], out[i, 3] = boxes[i, 0], boxes[i, 1], half_x, half_y
    out[i, 4], out[i, 5] = math.cos(heading), math.sin(heading)
    out[i, 6], out[i, 7] = math.sqrt(half_x * half_x + half_y * half_y), 4.0 * half_x * half_y


@Kernel
def _collide(boxes, count):
    """Whether each of the first ``count`` boxes shares area with another of all of them."""
    table, out = np.empty((boxes.shape[0], 8)), np.zeros(count, dtype=np.bool_)
    for i in range(boxes.shape[0]):
        _rectangle(boxes, i, table)
    for i in range(count):
        for j in range(boxes.shape[0]):
            if i != j and _circles_meet(table, i, table, j) and _shared_area(table, i, table, j) > 0.0:
                out[i] = True
                break
    return out


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
    volume_a = a[i, 7] * (heights_a[i, 1] - heights_a[i, 0])
    volume_b = b[j, 7] * (heights_b[j, 1] - heights_b[j, 0])
    total = volume_a + volume_b - shared
    return shared / total if shared > 0.0 and total > 0.0 else 0.0  # a NaN is above nothing


@Kernel
def _iou3d_rows(start, stop, a, b, heights_a, heights_b, out):
    for i in range(start, stop):
        for j in range(b.shape[0]):
            out[i, j] = _iou3d(a, i, b, j, heights_a, heights_b) if _circles_meet(a, i, b, j) else 0.0


@Kernel
def _aligned_overlap_rows(start, stop, a, b, out):
    for i in range(start, stop):
        out[i] = _shared_area(a, i, b, i) if _circles_meet(a, i, b, i) else 0.0


@Kernel
def _aligned_iou3d_rows(start, stop, a, b, heights_a, heights_b, out):
    for i in range(start, stop):
        out[i] = _iou3d(a, i, b, i, heights_a, heights_b) if _circles_meet(a, i, b, i) else 0.0


@device_function
def _outline(boxes, i, out):
    """Write row i of the ``outlines`` of boxes."""
    x, y = boxes[i, 0], boxes[i, 1]
    half_x, half_y = boxes[i, 3] / TWO, boxes[i, 4] / TWO
    heading = np.float64(boxes[i, 6])
    cos, sin = np.float32(math.cos(heading)), np.float32(math.sin(heading))
    out[i, 0], out[i, 1], out[i, 2], out[i, 3], out[i, 4], out[i, 5] = x, y, half_x + MARGIN, half_y + MARGIN, cos, sin
    left, right, low, high = (x - half_x) - x, (x + half_x) - x, (y - half_y) - y, (y + half_y) - y
    out[i, 6], out[i, 7] = left * cos + low * -sin + x, left * sin + low * cos + y
    out[i, 8], out[i, 9] = right * cos + low * -sin + x, right * sin + low * cos + y
    out[i, 10], out[i, 11] = right * cos + high * -sin + x, right * sin + high * cos + y
    out[i, 12], out[i, 13] = left * cos + high * -sin + x, left * sin + high * cos + y
    out[i, 14] = boxes[i, 3] * boxes[i, 4]
    out[i, 15] = math.sqrt(half_x * half_x + half_y * half_y) + MARGIN + ROUNDING * (abs(x) + abs(y))


@Kernel
def outline_rows(start, stop, boxes, out):
    for i in range(start, stop):
        _outline(boxes, i, out)


@device_function
def _turn(px, py, qx, qy, x, y):
    """Twice the signed area of the triangle (x, y), p, q."""
    return (px - x) * (qy - y) - (qx - x) * (py - y)


@device_function
def _edge_crossings(a, i, b, j, points):
    """Write the points where edges of row i of a cross edges of row j of b; their number."""
    count = 0
    for k in range(4):
        m = (k + 1) % 4
        p0x, p0y, p1x, p1y = a[i, 6 + 2 * k], a[i, 7 + 2 * k], a[i, 6 + 2 * m], a[i, 7 + 2 * m]
        for n in range(4):
            m = (n + 1) % 4
            q0x, q0y, q1x, q1y = b[j, 6 + 2 * n], b[j, 7 + 2 * n], b[j, 6 + 2 * m], b[j, 7 + 2 * m]
            if not (
                min(p0x, p1x) <= max(q0x, q1x)
                and min(q0x, q1x) <= max(p0x, p1x)
                and min(p0y, p1y) <= max(q0y, q1y)
                and min(q0y, q1y) <= max(p0y, p1y)
            ):
                continue
            first, last = _turn(q0x, q0y, p1x, p1y, p0x, p0y), _turn(q1x, q1y, p1x, p1y, p0x, p0y)
            if not first * -last > ZERO:
                continue
            if not _turn(p0x, p0y, q1x, q1y, q0x, q0y) * _turn(q1x, q1y, p1x, p1y, q0x, q0y) > ZERO:
                continue
            if abs(last - first) > PARALLEL:
                points[count, 0] = (last * q0x - first * q1x) / (last - first)
                points[count, 1] = (last * q0y - first * q1y) / (last - first)
            else:
                a0, b0, c0 = p0y - p1y, p1x - p0x, p0x * p1y - p1x * p0y
                a1, b1, c1 = q0y - q1y, q1x - q0x, q0x * q1y - q1x * q0y
                determinant = a0 * b1 - a1 * b0
                if determinant == ZERO:
                    continue
                points[count, 0] = (b0 * c1 - b1 * c0) / determinant
                points[count, 1] = (a1 * c0 - a0 * c1) / determinant
            count += 1
    return count


@device_function
def _within(a, i, x, y):
    """Whether a point lies in the enlarged box of row i."""
    cos, sin = a[i, 4], a[i, 5]
    dx, dy = x - a[i, 0], y - a[i, 1]
    return abs(dx * cos + dy * sin) < a[i, 2] and abs(dx * -sin + dy * cos) < a[i, 3]


@device_function
def _vertices(a, i, b, j, points):
    """Write the vertices of the polygon that the pair shares; their number."""
    count = _edge_crossings(a, i, b, j, points)
    for k in range(4):
        if _within(a, i, b[j, 6 + 2 * k], b[j, 7 + 2 * k]):
            points[count, 0], points[count, 1] = b[j, 6 + 2 * k], b[j, 7 + 2 * k]
            count += 1
        if _within(b, j, a[i, 6 + 2 * k], a[i, 7 + 2 * k]):
            points[count, 0], points[count, 1] = a[i, 6 + 2 * k], a[i, 7 + 2 * k]
            count += 1
    return count


@device_function
def _sort_around_mean(points, count):
    """Sort the first ``count`` rows x y angle by angle, equal ones as they stand."""
    x, y = ZERO, ZERO
    for k in range(count):
        x += points[k, 0]
        y += points[k, 1]
    x /= np.float32(count)
    y /= np.float32(count)
    for k in range(count):
        px, py = points[k, 0], points[k, 1]
        angle = math.atan2(py - y, px - x)
        place = k
        while place > 0 and points[place - 1, 2] > angle:
            for column in range(3):
                points[place, column] = points[place - 1, column]
            place -= 1
        points[place, 0], points[place, 1], points[place, 2] = px, py, angle


@device_function
def _published_area(a, i, b, j, points):
    """Overlap of row i of the ``outlines`` a and row j of b; ``points`` is scratch for the vertices."""
    count = _vertices(a, i, b, j, points)
    if count < 3:
        return ZERO
    _sort_around_mean(points, count)
    twice = ZERO
    for k in range(count - 1):
        twice += _turn(points[k, 0], points[k, 1], points[k + 1, 0], points[k + 1, 1], points[0, 0], points[0, 1])
    return abs(twice) / TWO


@Kernel
def _published_rows(start, stop, a, b, out):
    points = np.empty((VERTICES, 3), dtype=np.float32)
    for i in range(start, stop):
        for j in range(b.shape[0]):
            dx, dy, reach = a[i, 0] - b[j, 0], a[i, 1] - b[j, 1], a[i, 15] + b[j, 15]
            out[i, j] = _published_area(a, i, b, j, points) if dx * dx + dy * dy < reach * reach else ZERO


@device_function
def _bounds(outlines, i, out):
    """Write row i of a table for ``_verdict``: 0-7 as ``rectangles``, but 2-3 of an inner box; 8-9 of an outer one."""
    half_x, half_y = np.float64(outlines[i, 2]) - MARGIN, np.float64(outlines[i, 3]) - MARGIN
    out[i, 0], out[i, 1], out[i, 4], out[i, 5] = outlines[i, 0], outlines[i, 1], outlines[i, 4], outlines[i, 5]
    out[i, 6], out[i, 7] = outlines[i, 15], outlines[i, 14]
    slack = ROUNDING * (abs(out[i, 0]) + abs(out[i, 1]) + abs(half_x) + abs(half_y))
    out[i, 8], out[i, 9] = abs(half_x) + MARGIN + SHRINK + slack, abs(half_y) + MARGIN + SHRINK + slack
    if slack < SHRINK:
        out[i, 2], out[i, 3] = half_x - SHRINK - slack, half_y - SHRINK - slack
    else:  # kilometres away, or long: the margin itself is lost in rounding
        out[i, 2], out[i, 3] = -1.0, -1.0


@device_function
def _common_box(a, i, j, x, y, turn_cos, turn_sin):
    """Length and width of a box along row i of ``_bounds`` that holds all that its outer box shares with that of row j.

    (x, y) is the centre of j in the frame of i. One is 0 if a side of the outer box of i separates them.
    """
    reach_x = turn_cos * a[j, 8] + turn_sin * a[j, 9]
    reach_y = turn_sin * a[j, 8] + turn_cos * a[j, 9]
    length = min(a[i, 8], x + reach_x) - max(-a[i, 8], x - reach_x)
    width = min(a[i, 9], y + reach_y) - max(-a[i, 9], y - reach_y)
    return max(length, 0.0), max(width, 0.0)


@device_function
def _verdict(a, i, j, least):
    """1 if the published overlap of two rows of ``_bounds`` is above ``least``, -1 if not, 0 if that is not certain.

    All vertices lie in both outer boxes, so no more than these share is found: at most what the inner ones share plus a
    seam along its outline, as wide as the way between inner and outer sides. No less than the inner ones share is found
    if a circle of radius DEEP fits into that (it does if the area is DEEP outlines): then some vertex is 2 DEEP inside
    of any side, and at most 8 are outside, by MARGIN each. So the mean is inside, and around it, sorted vertices that
    are on or outside the shared polygon, its own among them, enclose it. SHRINK leaves room for rounding.
    """
    dx, dy = a[j, 0] - a[i, 0], a[j, 1] - a[i, 1]
    x, y = dx * a[i, 4] + dy * a[i, 5], dy * a[i, 4] - dx * a[i, 5]
    u, v = dx * a[j, 4] + dy * a[j, 5], dy * a[j, 4] - dx * a[j, 5]
    depth = min(
        min(a[i, 2] - abs(x) / 2.0, a[i, 3] - abs(y) / 2.0), min(a[j, 2] - abs(u) / 2.0, a[j, 3] - abs(v) / 2.0)
    )  # of the point between both centres
    if depth > DEEP and math.pi * depth * depth > least:
        return 1
    turn_cos, turn_sin = abs(a[i, 4] * a[j, 4] + a[i, 5] * a[j, 5]), abs(a[i, 4] * a[j, 5] - a[i, 5] * a[j, 4])
    length, width = _common_box(a, i, j, x, y, turn_cos, turn_sin)
    if not length * width > least:
        return -1
    long, wide = _common_box(a, j, i, -u, -v, turn_cos, turn_sin)
    if not long * wide > least:
        return -1
    if not min(min(a[i, 2], a[i, 3]), min(a[j, 2], a[j, 3])) > 0.0:
        return 0
    inner, outline = _shared_area(a, i, a, j), 2.0 * min(length + width, long + wide)
    if inner > least:
        return 1 if depth > DEEP or inner > DEEP * outline else 0
    return 0 if inner + max(a[i, 8] - a[i, 2], a[j, 8] - a[j, 2]) * outline > least else -1


@Kernel
def suppress(boxes, threshold, limit):
    """Positions of boxes (M, 7) that no earlier kept one overlaps by more than ``threshold``, at most ``limit``.

    The kernel of ``pcdet.ops.nms``, by OpenPCDet's overlap. It stands here because numba's cache watches only the file
    of a kernel itself.
    """
    m = boxes.shape[0]
    outlines, bounds = np.empty((m, 16), dtype=np.float32), np.empty((m, 10))
    for i in range(m):
        _outline(boxes, i, outlines)
        _bounds(outlines, i, bounds)
    xs, ys, reaches = outlines[:, 0].copy(), outlines[:, 1].copy(), outlines[:, 15].copy()  # dense: most of the time
    points = np.empty((VERTICES, 3), dtype=np.float32)
    suppressed = np.zeros(m, dtype=np.bool_)
    kept = np.empty(limit, dtype=np.int64)
    count = 0
    part = 1.0 / (1.0 + max(threshold, ZERO)) * max(threshold, ZERO)  # of both areas: the least overlap that counts
    for i in range(m):
        if suppressed[i]:
            continue
        kept[count] = i
        count += 1
        if count == limit:
            break
        for j in range(i + 1, m):
            dx, dy, reach = xs[i] - xs[j], ys[i] - ys[j], reaches[i] + reaches[j]
            if not dx * dx + dy * dy < reach * reach or suppressed[j]:
                continue
            areas = outlines[i, 14] + outlines[j, 14]
            verdict = _verdict(bounds, i, j, part * areas)
            if verdict == 0:
                shared = _published_area(outlines, i, outlines, j, points)
                suppressed[j] = shared > ZERO and shared / max(areas - shared, SMALLEST_UNION) > threshold
            else:
                suppressed[j] = verdict > 0
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


def boxes_collide_bev(boxes: Tensor, others: Tensor) -> Tensor:
    together = np.concatenate([boxes[:, :7].numpy(), others[:, :7].numpy()]).astype(np.float64)
    return torch.from_numpy(_collide(together, len(boxes)))


def boxes_iou_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _rows(_iou_rows, boxes_a, boxes_b)


def boxes_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _rows(_iou3d_rows, boxes_a, boxes_b, heights(boxes_a).numpy(), heights(boxes_b).numpy())


def boxes_aligned_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    out = torch.empty(len(boxes_a), dtype=torch.float64)
    tables = (rectangles(boxes_a).numpy(), rectangles(boxes_b).numpy(), out.numpy())
    parallel_for(_aligned_overlap_rows, len(out), *tables, chunk=PAIRS)
    return out


def boxes_aligned_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    tables = (rectangles(boxes_a), rectangles(boxes_b), heights(boxes_a), heights(boxes_b))
    out = torch.empty(len(boxes_a), dtype=torch.float32)
    parallel_for(_aligned_iou3d_rows, len(out), *(table.numpy() for table in tables), out.numpy(), chunk=PAIRS)
    return out


def outlines(boxes: Tensor) -> np.ndarray:
    """As ``reference.outlines``; a dozen small tensor operations would take longer than the suppression."""
    table = np.empty((len(boxes), 16), dtype=np.float32)
    outline_rows(0, len(boxes), plain(boxes), table)
    return table


def plain(boxes: Tensor) -> np.ndarray:
    """(M, 7+) -> (M, 7) float32"""
    return boxes[:, :7].float().contiguous().numpy()


def boxes_overlap_published(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    a, b = outlines(boxes_a), outlines(boxes_b)
    out = np.empty((len(a), len(b)), dtype=np.float32)
    if out.size:
        parallel_for(_published_rows, len(out), a, b, out, chunk=ROWS)
    return torch.from_numpy(out)
