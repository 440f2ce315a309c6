"""Rotated overlap on a GPU: a program takes a tile of pairs, and stops where no circles around two boxes meet.

At PV-RCNN's sizes, 512 proposals against at most 50 boxes in each of 4 scenes: 102,400 pairs. Read are 28 bytes a box,
0.06 MB in all, and 0.4 MB are written; a pair whose circles meet costs about 300 float64 operations, any other 6. With
one pair in ten near, 3.7 MFLOP: microseconds even where float64 runs at 1/64 of the float32 rate, so the launch is what
it costs. So one launch does everything: each program derives sines, half sizes and radii of its few boxes again
rather than reading them from a table that a launch before it would have to write.

The arithmetic is that of ``reference.py``, operation by operation, so results are equal to the last bit but for what
the cosine of another library rounds differently. OpenPCDet's overlap sorts its vertices by a pseudo-angle that
rises with the angle, since Triton has no arc tangent: vertices whose angles agree to seven digits may change places.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.triton import launch

OVERLAP, IOU, IOU3D = (tl.constexpr(k) for k in range(3))
NOISE = tl.constexpr(1e-12)  # these are the constants of reference.py
MARGIN = tl.constexpr(1e-2)
PARALLEL = tl.constexpr(1e-8)
ROUNDING = tl.constexpr(1e-6)
VERTICES = tl.constexpr(24)  # at most: 16 crossings of edges and 8 corners
LAST = tl.constexpr(3.0)  # above any pseudo-angle
ROWS, COLUMNS, PAIRS = 4, 32, 128  # a pair a thread: the vertices of one fill its registers


@triton.jit
def load_box(boxes, row, there, width, KIND: tl.constexpr):
    """x, y, z, dx, dy, dz, heading of some rows of (M, width) boxes, as numbers of one kind; zeros where none is."""
    box = ()
    for column in tl.static_range(7):
        box = box + (tl.load(boxes + row * width + column, mask=there, other=0.0).to(KIND),)
    return box


@triton.jit
def _rectangle(boxes, row, there, width):
    """As ``reference.rectangles`` with bottom and top; a NaN in the heading makes a circle that meets none."""
    x, y, z, dx, dy, dz, heading = load_box(boxes, row, there, width, tl.float64)
    valid = (dx > 0) & (dy > 0)
    hx, hy = tl.where(valid, dx / 2, 0.0), tl.where(valid, dy / 2, 0.0)
    hz = tl.where(dz > 0, dz / 2, 0.0)
    z = tl.where(z == z, z, float("inf"))  # a NaN is above all others: minima on a GPU would ignore it
    cos, sin = tl.cos(heading), tl.sin(heading)
    radius = tl.where(cos == cos, tl.sqrt(hx * hx + hy * hy), float("nan"))
    return x, y, hx, hy, cos, sin, radius, 4 * (hx * hy), z - hz, z + hz


@triton.jit
def as_rows(values):
    """Each of some blocks as a column of a tile: its entries belong to rows."""
    made = ()
    for k in tl.static_range(len(values)):
        made = made + (values[k][:, None],)
    return made


@triton.jit
def as_columns(values):
    """Each of some blocks as a row of a tile: its entries belong to columns."""
    made = ()
    for k in tl.static_range(len(values)):
        made = made + (values[k][None, :],)
    return made


@triton.jit
def _clamp(value, low, high):
    return tl.minimum(tl.maximum(value, low), high)


@triton.jit
def _crossings(x, ex, hx, low, high):
    step = tl.where(ex == 0, 1.0, ex)
    t, u = (-hx - x) / step, (hx - x) / step
    return _clamp(tl.minimum(t, u), low, high), _clamp(tl.maximum(t, u), low, high)


@triton.jit
def _edge(x, y, ex, ey, hx, hy):
    """Integral of clamp(x) d clamp(y) along the edge (x, y) + t (ex, ey), t in [0, 1]."""
    low, high = _crossings(y, ey, hy, 0.0, 1.0)
    first, second = _crossings(x, ex, hx, low, high)
    x0, x1 = _clamp(x + low * ex, -hx, hx), _clamp(x + first * ex, -hx, hx)
    x2, x3 = _clamp(x + second * ex, -hx, hx), _clamp(x + high * ex, -hx, hx)
    twice = (x0 + x1) * (first - low) + (x1 + x2) * (second - first) + (x2 + x3) * (high - second)
    return ey * twice / 2


@triton.jit
def _near(a, b):
    dx, dy, reach = a[0] - b[0], a[1] - b[1], a[6] + b[6]
    return dx * dx + dy * dy < reach * reach


@triton.jit
def _shared_area(a, b, near):
    """Area that rectangles share which broadcast against each other."""
    dx, dy = a[0] - b[0], a[1] - b[1]
    cos_b, sin_b, hx, hy = b[4], b[5], b[2], b[3]
    x, y = dx * cos_b + dy * sin_b, dy * cos_b - dx * sin_b
    cos, sin = a[4] * cos_b + a[5] * sin_b, a[5] * cos_b - a[4] * sin_b
    ux, uy = cos * a[2], sin * a[2]
    vx, vy = -sin * a[3], cos * a[3]
    area = _edge(x + ux - vx, y + uy - vy, 2 * vx, 2 * vy, hx, hy)
    area += _edge(x + ux + vx, y + uy + vy, -2 * ux, -2 * uy, hx, hy)
    area += _edge(x - ux + vx, y - uy + vy, -2 * vx, -2 * vy, hx, hy)
    area += _edge(x - ux - vx, y - uy - vy, 2 * ux, 2 * uy, hx, hy)
    smaller = tl.minimum(a[7], b[7])
    return tl.where(near & (area > NOISE * smaller), tl.minimum(area, smaller), 0.0)


@triton.jit
def _measure(a, b, near, MEASURE: tl.constexpr):
    """Overlap, or intersection over union, of rectangles that broadcast against each other."""
    shared, total = _shared_area(a, b, near), a[7] + b[7]
    if MEASURE == IOU3D:
        height = tl.minimum(a[9], b[9]) - tl.maximum(a[8], b[8])
        shared = shared * tl.where(height > 0, height, 0.0)
        total = a[7] * (a[9] - a[8]) + b[7] * (b[9] - b[8])
    if MEASURE != OVERLAP:
        shared = tl.where(shared > 0, shared / (total - shared), 0.0)
    return shared


@triton.jit(do_not_specialize=["n", "m"])
def _all_pairs_kernel(
    boxes_a, boxes_b, out, n, m, width_a, width_b, MEASURE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    a = as_rows(_rectangle(boxes_a, row, row < n, width_a))
    b = as_columns(_rectangle(boxes_b, column, column < m, width_b))
    near = _near(a, b)
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    if tl.max(near.to(tl.int32)) > 0:
        found = _measure(a, b, near, MEASURE).to(tl.float32)
    tl.store(out + row[:, None].to(tl.int64) * m + column, found, mask=(row[:, None] < n) & (column < m))


@triton.jit(do_not_specialize=["n"])
def _aligned_kernel(boxes_a, boxes_b, out, n, width_a, width_b, MEASURE: tl.constexpr, PAIRS: tl.constexpr):
    row = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    a, b = _rectangle(boxes_a, row, row < n, width_a), _rectangle(boxes_b, row, row < n, width_b)
    tl.store(out + row, _measure(a, b, _near(a, b), MEASURE).to(out.dtype.element_ty), mask=row < n)


@triton.jit
def _outline(boxes, row, there, width):
    """The 16 numbers of ``reference.outlines``, float32."""
    x, y, _, dx, dy, _, _ = load_box(boxes, row, there, width, tl.float32)
    heading = tl.load(boxes + row * width + 6, mask=there, other=0.0).to(tl.float64)
    hx, hy = dx / 2, dy / 2
    cos, sin = tl.cos(heading).to(tl.float32), tl.sin(heading).to(tl.float32)
    left, right, low, high = (x - hx) - x, (x + hx) - x, (y - hy) - y, (y + hy) - y
    radius = tl.sqrt_rn(hx * hx + hy * hy) + MARGIN + ROUNDING * (tl.abs(x) + tl.abs(y))
    return (
        x,
        y,
        hx + MARGIN,
        hy + MARGIN,
        cos,
        sin,
        left * cos + low * -sin + x,
        left * sin + low * cos + y,
        right * cos + low * -sin + x,
        right * sin + low * cos + y,
        right * cos + high * -sin + x,
        right * sin + high * cos + y,
        left * cos + high * -sin + x,
        left * sin + high * cos + y,
        dx * dy,
        radius,
    )


@triton.jit
def circles_meet(a, b):
    """Whether the circles around outlines meet; others have no vertex."""
    dx, dy, reach = a[0] - b[0], a[1] - b[1], a[15] + b[15]
    return dx * dx + dy * dy < reach * reach


@triton.jit
def _turn(px, py, qx, qy, x, y):
    """Twice the signed area of the triangle (x, y), p, q."""
    return (px - x) * (qy - y) - (qx - x) * (py - y)


@triton.jit
def _crossing(p0x, p0y, p1x, p1y, q0x, q0y, q1x, q1y):
    """Where two edges cross, and whether they do."""
    near = (tl.minimum(p0x, p1x) <= tl.maximum(q0x, q1x)) & (tl.minimum(q0x, q1x) <= tl.maximum(p0x, p1x))
    near &= (tl.minimum(p0y, p1y) <= tl.maximum(q0y, q1y)) & (tl.minimum(q0y, q1y) <= tl.maximum(p0y, p1y))
    first, last = _turn(q0x, q0y, p1x, p1y, p0x, p0y), _turn(q1x, q1y, p1x, p1y, p0x, p0y)
    turns = _turn(p0x, p0y, q1x, q1y, q0x, q0y) * _turn(q1x, q1y, p1x, p1y, q0x, q0y)
    apart = last - first
    parallel = tl.abs(apart) <= PARALLEL
    a0, b0, c0 = p0y - p1y, p1x - p0x, p0x * p1y - p1x * p0y
    a1, b1, c1 = q0y - q1y, q1x - q0x, q0x * q1y - q1x * q0y
    determinant = a0 * b1 - a1 * b0
    crosses = near & (first * -last > 0) & (turns > 0) & ((determinant != 0) | (parallel == 0))
    below = tl.where(parallel, determinant, apart)
    below = tl.where(crosses, below, 1.0)
    x = tl.div_rn(tl.where(parallel, b0 * c1 - b1 * c0, last * q0x - first * q1x), below)
    y = tl.div_rn(tl.where(parallel, a1 * c0 - a0 * c1, last * q0y - first * q1y), below)
    return x, y, crosses


@triton.jit
def _within(box, x, y):
    """Whether points lie in the enlarged boxes."""
    dx, dy = x - box[0], y - box[1]
    return (tl.abs(dx * box[4] + dy * box[5]) < box[2]) & (tl.abs(dx * -box[5] + dy * box[4]) < box[3])


@triton.jit
def _pseudo_angle(x, y):
    """Rises with atan2(y, x), from -2 to 2; 0 at the origin."""
    length = tl.abs(x) + tl.abs(y)
    part = tl.div_rn(y, tl.where(length > 0, length, 1.0))
    return tl.where(x >= 0, part, tl.where(y >= 0, 2.0 - part, -2.0 - part))


@triton.jit
def _vertices(a, b):
    """x, y of the 24 candidates for vertices of the shared polygon, zeros where there is none, and how many are."""
    xs, ys, exists = (), (), ()
    for k in tl.static_range(4):
        for n in tl.static_range(4):
            x, y, crosses = _crossing(
                a[6 + 2 * k],
                a[7 + 2 * k],
                a[6 + 2 * ((k + 1) % 4)],
                a[7 + 2 * ((k + 1) % 4)],
                b[6 + 2 * n],
                b[7 + 2 * n],
                b[6 + 2 * ((n + 1) % 4)],
                b[7 + 2 * ((n + 1) % 4)],
            )
            xs, ys, exists = xs + (tl.where(crosses, x, 0.0),), ys + (tl.where(crosses, y, 0.0),), exists + (crosses,)
    for k in tl.static_range(4):
        within = _within(a, b[6 + 2 * k], b[7 + 2 * k])
        xs, ys = xs + (tl.where(within, b[6 + 2 * k], 0.0),), ys + (tl.where(within, b[7 + 2 * k], 0.0),)
        exists = exists + (within,)
        within = _within(b, a[6 + 2 * k], a[7 + 2 * k])
        xs, ys = xs + (tl.where(within, a[6 + 2 * k], 0.0),), ys + (tl.where(within, a[7 + 2 * k], 0.0),)
        exists = exists + (within,)
    return xs, ys, exists


@triton.jit
def published_area(a, b):
    """OpenPCDet's overlap of outlines that broadcast against each other, in square metres."""
    xs, ys, exists = _vertices(a, b)
    x, y, count = xs[0], ys[0], exists[0].to(tl.float32)
    for k in tl.static_range(1, VERTICES):  # in order, as any other order rounds differently
        x, y, count = x + xs[k], y + ys[k], count + exists[k].to(tl.float32)
    some = tl.maximum(count, 1.0)
    x, y = tl.div_rn(x, some), tl.div_rn(y, some)
    keys = ()
    for k in tl.static_range(VERTICES):
        keys = keys + (tl.where(exists[k], _pseudo_angle(xs[k] - x, ys[k] - y), LAST),)
    first_x, first_y, keys = _take_least(keys, xs, ys)
    x, y, twice = first_x, first_y, tl.zeros_like(count)
    for k in range(1, tl.max(count, axis=0).to(tl.int32)):
        next_x, next_y, keys = _take_least(keys, xs, ys)
        twice += tl.where(k < count, _turn(x, y, next_x, next_y, first_x, first_y), 0.0)
        x, y = next_x, next_y
    return tl.abs(twice) / 2


@triton.jit
def _take_least(keys, xs, ys):
    """x, y of the first of those with the least key, and the keys without it.

    To take them one by one is as cheap as to sort 24, because few exist, and it is a tenth of the code.
    """
    least = keys[0]
    for k in tl.static_range(1, VERTICES):
        least = tl.minimum(least, keys[k])
    x, y, taken = xs[0], ys[0], tl.zeros_like(least).to(tl.int32)
    for back in tl.static_range(1, VERTICES + 1):  # the first writes last
        here = keys[VERTICES - back] == least
        x, y = tl.where(here, xs[VERTICES - back], x), tl.where(here, ys[VERTICES - back], y)
        taken = tl.where(here, VERTICES - back, taken)
    left = ()
    for k in tl.static_range(VERTICES):
        left = left + (tl.where(taken == k, LAST, keys[k]),)
    return x, y, left


@triton.jit
def load_outline(outlines, row, there):
    """The 16 numbers of some rows of a table of outlines."""
    made = ()
    for column in tl.static_range(16):
        made = made + (tl.load(outlines + row.to(tl.int64) * 16 + column, mask=there, other=0.0),)
    return made


@triton.jit(do_not_specialize=["m"])
def _outlines_kernel(boxes, out, m, width, PAIRS: tl.constexpr):
    row = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    made = _outline(boxes, row, row < m, width)
    for column in tl.static_range(16):
        tl.store(out + row.to(tl.int64) * 16 + column, made[column], mask=row < m)


@triton.jit(do_not_specialize=["n", "m"])
def _published_kernel(a, b, out, n, m, PAIRS: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    there = pair < n.to(tl.int64) * m
    row, column = load_outline(a, pair // m, there), load_outline(b, pair % m, there)
    near = circles_meet(row, column)
    found = tl.zeros((PAIRS,), tl.float32)
    if tl.max(near.to(tl.int32), axis=0) > 0:
        found = tl.where(near, published_area(row, column), 0.0)
    tl.store(out + pair, found, mask=there)


def outlines(boxes: Tensor) -> Tensor:
    """As ``reference.outlines``. (M, 7+) -> (M, 16) float32"""
    m = len(boxes)
    out = torch.empty(m, 16, dtype=torch.float32, device=boxes.device)
    launch(_outlines_kernel, (triton.cdiv(m, PAIRS),), boxes.contiguous(), out, m, boxes.shape[1], PAIRS=PAIRS)
    return out


def _all_pairs(boxes_a: Tensor, boxes_b: Tensor, measure: int) -> Tensor:
    n, m = len(boxes_a), len(boxes_b)
    out = torch.empty(n, m, dtype=torch.float32, device=boxes_a.device)
    grid = (triton.cdiv(n, ROWS), triton.cdiv(m, COLUMNS))
    arguments = (boxes_a.contiguous(), boxes_b.contiguous(), out, n, m, boxes_a.shape[1], boxes_b.shape[1])
    launch(_all_pairs_kernel, grid, *arguments, MEASURE=measure, ROWS=ROWS, COLUMNS=COLUMNS)
    return out


def _aligned(boxes_a: Tensor, boxes_b: Tensor, dtype: torch.dtype, measure: int) -> Tensor:
    n = len(boxes_a)
    out = torch.empty(n, dtype=dtype, device=boxes_a.device)
    arguments = (boxes_a.contiguous(), boxes_b.contiguous(), out, n, boxes_a.shape[1], boxes_b.shape[1])
    launch(_aligned_kernel, (triton.cdiv(n, PAIRS),), *arguments, MEASURE=measure, PAIRS=PAIRS)
    return out


def boxes_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _all_pairs(boxes_a, boxes_b, OVERLAP.value)


def boxes_overlap_published(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    n, m = len(boxes_a), len(boxes_b)
    out = torch.empty(n, m, dtype=torch.float32, device=boxes_a.device)
    arguments = (outlines(boxes_a), outlines(boxes_b), out, n, m)
    launch(_published_kernel, (triton.cdiv(n * m, PAIRS),), *arguments, PAIRS=PAIRS)
    return out


def boxes_iou_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _all_pairs(boxes_a, boxes_b, IOU.value)


def boxes_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _all_pairs(boxes_a, boxes_b, IOU3D.value)


def boxes_collide_bev(boxes: Tensor, others: Tensor) -> Tensor:
    own = boxes_overlap_bev(boxes, boxes).fill_diagonal_(0)
    return torch.cat([own, boxes_overlap_bev(boxes, others)], dim=1).gt(0).any(dim=1)


def boxes_aligned_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _aligned(boxes_a, boxes_b, torch.float64, OVERLAP.value)


def boxes_aligned_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return _aligned(boxes_a, boxes_b, torch.float32, IOU3D.value)
