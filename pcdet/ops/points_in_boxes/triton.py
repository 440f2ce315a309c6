"""Points in boxes on a GPU: a block of points stays in registers while all boxes pass by.

At PointRCNN's training sizes, 16,384 points a scene against 50 boxes (twice a step, in 4 scenes), there are 0.8 M
pairs a scene: 12 float64 operations each, 10 MFLOP, 20 us even at 1/64 of the float32 rate. Read are 12 bytes a point
and 64 bytes a box from the cache; the index form writes 8 bytes a point, 0.13 MB, the mask a byte a pair, 0.8 MB. So
the time is that of two launches: sines and half sizes of the boxes first, since every program needs them all.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.triton import launch

POINTS = 256  # two a thread
BOXES = 64


@triton.jit(do_not_specialize=["m"])
def _table_kernel(boxes, out, m, width, margin, BOXES: tl.constexpr):
    row = tl.program_id(0) * BOXES + tl.arange(0, BOXES)
    there = row < m
    for column in tl.static_range(3):
        value = tl.load(boxes + row * width + column, mask=there, other=0.0).to(tl.float64)
        size = tl.load(boxes + row * width + 3 + column, mask=there, other=0.0).to(tl.float64)
        half = size / 2
        if column < 2:
            half += tl.load(margin)
        tl.store(out + row * 8 + column, value, mask=there)
        tl.store(out + row * 8 + 3 + column, half, mask=there)
    heading = tl.load(boxes + row * width + 6, mask=there, other=0.0).to(tl.float64)
    tl.store(out + row * 8 + 6, tl.cos(heading), mask=there)
    tl.store(out + row * 8 + 7, tl.sin(heading), mask=there)


@triton.jit
def load_point(points, row, there, width):
    """x, y, z of some rows of (N, width) points, float64; NaN, which lies in no box, where none is."""
    base = points + row.to(tl.int64) * width
    x = tl.load(base, mask=there, other=float("nan")).to(tl.float64)
    y = tl.load(base + 1, mask=there, other=0.0).to(tl.float64)
    return x, y, tl.load(base + 2, mask=there, other=0.0).to(tl.float64)


@triton.jit
def is_inside(x, y, z, table, m):
    """Whether points lie in row ``m`` of the table of boxes."""
    box = table + m * 8
    dx, dy, dz = x - tl.load(box), y - tl.load(box + 1), z - tl.load(box + 2)
    cos, sin = tl.load(box + 6), tl.load(box + 7)
    inside = tl.abs(dx * cos + dy * sin) <= tl.load(box + 3)
    inside &= tl.abs(dy * cos - dx * sin) <= tl.load(box + 4)
    return inside & (tl.abs(dz) <= tl.load(box + 5))


@triton.jit(do_not_specialize=["n", "m"])
def _mask_kernel(points, table, out, n, m, width, POINTS: tl.constexpr):
    row = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    x, y, z = load_point(points, row, row < n, width)
    for box in range(m):
        tl.store(out + row, is_inside(x, y, z, table, box), mask=row < n)
        out += n


@triton.jit(do_not_specialize=["n", "m"])
def _index_kernel(points, table, out, n, m, width, POINTS: tl.constexpr):
    row = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    x, y, z = load_point(points, row, row < n, width)
    found = tl.full((POINTS,), -1, tl.int64)
    for box in range(m):
        found = tl.where((found < 0) & is_inside(x, y, z, table, box), box, found)
    tl.store(out + row, found, mask=row < n)


def box_table(boxes: Tensor, margin: float) -> Tensor:
    """As ``reference.box_table``, by one launch. (M, 7+) -> (M, 8) float64"""
    m = len(boxes)
    out = torch.empty(m, 8, dtype=torch.float64, device=boxes.device)
    exact = torch.full((), margin, dtype=torch.float64, device=boxes.device)  # an argument would be float32
    launch(_table_kernel, (triton.cdiv(m, BOXES),), boxes.contiguous(), out, m, boxes.shape[1], exact, BOXES=BOXES)
    return out


def _run(kernel: triton.JITFunction, points: Tensor, boxes: Tensor, margin: float, out: Tensor) -> Tensor:
    n, m = len(points), len(boxes)
    arguments = (points.contiguous(), box_table(boxes, margin), out, n, m, points.shape[1])
    launch(kernel, (triton.cdiv(n, POINTS),), *arguments, POINTS=POINTS)
    return out


def mask(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (M, N) bool."""
    out = torch.empty(len(boxes), len(points), dtype=torch.bool, device=points.device)
    return _run(_mask_kernel, points, boxes, margin, out)


def index(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (N,) int64."""
    return _run(_index_kernel, points, boxes, margin, torch.empty(len(points), dtype=torch.int64, device=points.device))


def any_box(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    """-> (N,) bool."""
    return index(points, boxes, margin) >= 0
