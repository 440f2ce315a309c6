"""Furthest point sampling as Triton kernels: one program a cloud, since every sample waits for the one before it.

PV-RCNN: 2048 of 18,000 points of each of B = 2 scenes. The plain algorithm needs 2048 x 18,000 x 10 operations a
scene, 0.37 GFLOP, and as many times 20 bytes, 740 MB: few operations for a GPU, but a chain of 2048 steps, each with
a reduction over all points. What counts is the latency of a step, about a microsecond at best.

Up to 16,384 points (PointRCNN, PointNet++, sectors of PV-RCNN++) the distances stay in the registers of one program,
and up to 8192 the coordinates do too; above, they are read again from the cache in each step, 196 kB at 16,384, some
1500 cycles. Beyond, 20 bytes a point and step would come from the L2 cache at some 64 bytes a cycle: 6000 cycles at
18,000 points. So there the points are sorted along a Morton curve and cut into buckets with bounding boxes, as in the
CPU kernel, and a step visits only the buckets that the new sample can change: a few of them, some 400 cycles each.
The bound uses the same float32 operations as the distances and rounding is monotonic, so the samples are the same.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.triton import block_of, launch

HELD = 16384  # points of the largest cloud whose distances one program holds
BUCKET = 1024  # points


def sample_batch(points: Tensor, num_samples: int) -> Tensor:
    """(B, N, 3) float32 -> (B, S) int64 indices within each cloud."""
    batch, n = points.shape[:2]
    scene = torch.arange(batch + 1, device=points.device)
    out = torch.empty(batch, num_samples, dtype=torch.int64, device=points.device)
    _sample(points.reshape(batch * n, 3).contiguous(), scene * n, scene * num_samples, batch, n, out, local=True)
    return out


def sample_stack(points: Tensor, counts: Sequence[int], samples: Sequence[int]) -> Tensor:
    """(N, 3) float32 -> (sum of samples,) int64 global indices."""
    lengths = torch.tensor([[0, *counts], [0, *samples]], dtype=torch.int64, device=points.device)
    offsets, sample_offsets = lengths.cumsum(dim=1)
    out = torch.empty(sum(samples), dtype=torch.int64, device=points.device)
    _sample(points.contiguous(), offsets, sample_offsets, len(counts), max(counts, default=0), out, local=False)
    return out


def _sample(
    points: Tensor, offsets: Tensor, sample_offsets: Tensor, scenes: int, most: int, out: Tensor, *, local: bool
) -> None:
    if scenes == 0 or out.numel() == 0:
        return
    if most <= HELD:
        block = block_of(most, 128, HELD)
        arguments = (points, offsets, sample_offsets, out)
        launch(held_kernel, (scenes,), *arguments, num_warps=block_of(block // 256, 1, 16), LOCAL=local, BLOCK=block)
        return
    buckets = triton.cdiv(most, BUCKET)
    keys = torch.empty(len(points), dtype=torch.int64, device=points.device)
    launch(curve_kernel, (scenes,), points, offsets, keys, num_warps=8, BLOCK=1024)
    order = keys.sort().indices
    xyz = torch.empty(3, len(points), dtype=torch.float32, device=points.device)
    bounds = torch.empty(scenes, 6, buckets, dtype=torch.float32, device=points.device)
    best = torch.empty(scenes, buckets, dtype=torch.int64, device=points.device)
    distance = torch.empty(len(points), dtype=torch.float32, device=points.device)
    shared = (offsets, order, xyz, bounds, best, distance, len(points), buckets)
    launch(bucket_kernel, (scenes, buckets), points, *shared, BLOCK=BUCKET)
    launch(
        bucketed_kernel,
        (scenes,),
        *(points, sample_offsets, *shared, out),
        num_warps=block_of(BUCKET // 128, 1, 8),
        LOCAL=local,
        BLOCK=BUCKET,
        BLOCK_BUCKETS=block_of(buckets, 16, 1 << 20),
    )


@triton.jit
def held_kernel(
    points,  # (N, 3)
    offsets,  # (B + 1,)
    sample_offsets,  # (B + 1,)
    out,  # (samples,), written
    LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    scene = tl.program_id(0)
    start = tl.load(offsets + scene)
    n = (tl.load(offsets + scene + 1) - start).to(tl.int32)
    at = tl.load(sample_offsets + scene)
    samples = (tl.load(sample_offsets + scene + 1) - at).to(tl.int32)
    cloud = points + start * 3
    base = start
    if LOCAL:
        base = start * 0
    k = tl.arange(0, BLOCK)
    is_point = k < n
    px = tl.load(cloud + k * 3, mask=is_point, other=0.0)
    py = tl.load(cloud + k * 3 + 1, mask=is_point, other=0.0)
    pz = tl.load(cloud + k * 3 + 2, mask=is_point, other=0.0)
    distance = tl.where(is_point, float("inf"), -1.0)  # what is no point is never the furthest
    last = n * 0
    if samples > 0:
        tl.store(out + at, base)
    for s in range(1, samples):
        if BLOCK > 8192:  # more than the registers hold: read again, from the cache
            px = tl.load(cloud + k * 3, mask=is_point, other=0.0)
            py = tl.load(cloud + k * 3 + 1, mask=is_point, other=0.0)
            pz = tl.load(cloud + k * 3 + 2, mask=is_point, other=0.0)
        dx = px - tl.load(cloud + last * 3)
        dy = py - tl.load(cloud + last * 3 + 1)
        dz = pz - tl.load(cloud + last * 3 + 2)
        new = dx * dx + dy * dy + dz * dz
        distance = tl.where(new < distance, new, distance)
        last = tl.argmax(distance, 0, tie_break_left=True)
        tl.store(out + at + s, base + last)


@triton.jit
def _spread(value):
    """Two zero bits between the bits of a 10-bit number."""
    value = (value | (value << 16)) & 0x030000FF
    value = (value | (value << 8)) & 0x0300F00F
    value = (value | (value << 4)) & 0x030C30C3
    return (value | (value << 2)) & 0x09249249


@triton.jit
def curve_kernel(
    points,  # (N, 3)
    offsets,  # (B + 1,)
    keys,  # (N,), written: scene, then place along a Morton curve through the cube around the scene
    BLOCK: tl.constexpr,
):
    scene = tl.program_id(0)
    start = tl.load(offsets + scene)
    n = (tl.load(offsets + scene + 1) - start).to(tl.int32)
    cloud = points + start * 3
    low_x = tl.full([BLOCK], float("inf"), tl.float32)
    low_y, low_z, high_x, high_y, high_z = low_x, low_x, -low_x, -low_x, -low_x
    for first in range(0, n, BLOCK):
        k = first + tl.arange(0, BLOCK)
        x = tl.load(cloud + k * 3, mask=k < n, other=float("nan"))  # a NaN changes neither bound
        y = tl.load(cloud + k * 3 + 1, mask=k < n, other=float("nan"))
        z = tl.load(cloud + k * 3 + 2, mask=k < n, other=float("nan"))
        low_x, high_x = tl.where(x < low_x, x, low_x), tl.where(x > high_x, x, high_x)
        low_y, high_y = tl.where(y < low_y, y, low_y), tl.where(y > high_y, y, high_y)
        low_z, high_z = tl.where(z < low_z, z, low_z), tl.where(z > high_z, z, high_z)
    x_at, y_at, z_at = tl.min(low_x, 0), tl.min(low_y, 0), tl.min(low_z, 0)
    extent = tl.maximum(tl.max(high_x, 0) - x_at, tl.max(high_y, 0) - y_at)
    extent = tl.maximum(extent, tl.max(high_z, 0) - z_at)
    scale = tl.where((extent > 0) & (extent < float("inf")), 1023.0 / extent, 0.0)
    for first in range(0, n, BLOCK):
        k = first + tl.arange(0, BLOCK)
        is_point = k < n
        x = (tl.load(cloud + k * 3, mask=is_point, other=0.0) - x_at) * scale
        y = (tl.load(cloud + k * 3 + 1, mask=is_point, other=0.0) - y_at) * scale
        z = (tl.load(cloud + k * 3 + 2, mask=is_point, other=0.0) - z_at) * scale
        x = tl.where((x >= 0) & (x < 1024), x, 0.0).to(tl.int32)
        y = tl.where((y >= 0) & (y < 1024), y, 0.0).to(tl.int32)
        z = tl.where((z >= 0) & (z < 1024), z, 0.0).to(tl.int32)
        key = _spread(x) | (_spread(y) << 1) | (_spread(z) << 2)
        tl.store(keys + start + k, scene.to(tl.int64) << 32 | key.to(tl.int64), mask=is_point)


@triton.jit
def _key(distance, index, is_point):
    """Orders by distance, then by the lower index: floats that are not negative sort as the integers of their bits."""
    bits = distance.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(is_point, bits << 32 | (0x7FFFFFFF - index), -1)


@triton.jit(do_not_specialize=["num_points", "buckets"])
def bucket_kernel(
    points,  # (N, 3)
    offsets,  # (B + 1,)
    order,  # (N,) rows of the points along the curve
    xyz,  # (3, N), written: the points in that order
    bounds,  # (B, 6, buckets), written: low x y z, high x y z
    best,  # (B, buckets), written: key of the furthest point
    distance,  # (N,), written: infinite
    num_points,
    buckets,
    BLOCK: tl.constexpr,
):
    scene = tl.program_id(0)
    bucket = tl.program_id(1)
    start = tl.load(offsets + scene)
    n = (tl.load(offsets + scene + 1) - start).to(tl.int32)
    k = bucket * BLOCK + tl.arange(0, BLOCK)
    is_point = k < n
    row = tl.load(order + start + k, mask=is_point, other=0)
    infinite = tl.full([BLOCK], float("inf"), tl.float32)
    for axis in tl.static_range(3):
        value = tl.load(points + row * 3 + axis, mask=is_point, other=0.0)
        tl.store(xyz + num_points.to(tl.int64) * axis + start + k, value, mask=is_point)
        out = bounds + (scene * 6 + axis) * buckets + bucket
        tl.store(out, tl.min(tl.where(is_point, value, infinite), 0))
        tl.store(out + 3 * buckets, tl.max(tl.where(is_point, value, -infinite), 0))
    tl.store(best + scene * buckets + bucket, tl.max(_key(infinite, row - start, is_point), 0))
    tl.store(distance + start + k, infinite, mask=is_point)


@triton.jit(do_not_specialize=["num_points", "buckets"])
def bucketed_kernel(
    points,  # (N, 3)
    sample_offsets,  # (B + 1,)
    offsets,  # (B + 1,)
    order,  # (N,)
    xyz,  # (3, N)
    bounds,  # (B, 6, buckets)
    best,  # (B, buckets)
    distance,  # (N,), changed
    num_points,
    buckets,
    out,  # (samples,), written
    LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_BUCKETS: tl.constexpr,
):
    scene = tl.program_id(0)
    start = tl.load(offsets + scene)
    n = (tl.load(offsets + scene + 1) - start).to(tl.int32)
    at = tl.load(sample_offsets + scene)
    samples = (tl.load(sample_offsets + scene + 1) - at).to(tl.int32)
    cloud = points + start * 3
    base = start
    if LOCAL:
        base = start * 0
    b = tl.arange(0, BLOCK_BUCKETS)
    is_bucket = b < buckets
    box = bounds + scene * 6 * buckets + b
    low_x = tl.load(box, mask=is_bucket, other=0.0)
    low_y = tl.load(box + buckets, mask=is_bucket, other=0.0)
    low_z = tl.load(box + 2 * buckets, mask=is_bucket, other=0.0)
    high_x = tl.load(box + 3 * buckets, mask=is_bucket, other=0.0)
    high_y = tl.load(box + 4 * buckets, mask=is_bucket, other=0.0)
    high_z = tl.load(box + 5 * buckets, mask=is_bucket, other=0.0)
    keys = tl.load(best + scene * buckets + b, mask=is_bucket, other=-1)
    last = start * 0
    if samples > 0:
        tl.store(out + at, base)
    for s in range(1, samples):
        x = tl.load(cloud + last * 3)
        y = tl.load(cloud + last * 3 + 1)
        z = tl.load(cloud + last * 3 + 2)
        dx = tl.maximum(tl.maximum(low_x - x, x - high_x), 0.0)
        dy = tl.maximum(tl.maximum(low_y - y, y - high_y), 0.0)
        dz = tl.maximum(tl.maximum(low_z - z, z - high_z), 0.0)
        largest = (keys >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        may_change = (keys >= 0) & (dx * dx + dy * dy + dz * dz < largest)
        waiting = tl.where(may_change, b, BLOCK_BUCKETS)
        bucket = tl.min(waiting, 0)
        while bucket < BLOCK_BUCKETS:
            k = bucket * BLOCK + tl.arange(0, BLOCK)
            is_point = k < n
            place = start + k
            px = tl.load(xyz + place, mask=is_point, other=0.0) - x
            py = tl.load(xyz + num_points.to(tl.int64) + place, mask=is_point, other=0.0) - y
            pz = tl.load(xyz + num_points.to(tl.int64) * 2 + place, mask=is_point, other=0.0) - z
            old = tl.load(distance + place, mask=is_point, other=0.0)
            index = tl.load(order + place, mask=is_point, other=0) - start
            new = px * px + py * py + pz * pz
            new = tl.where(new < old, new, old)
            tl.store(distance + place, new, mask=is_point)
            keys = tl.where(b == bucket, tl.max(_key(new, index, is_point), 0), keys)
            waiting = tl.where(b == bucket, BLOCK_BUCKETS, waiting)
            bucket = tl.min(waiting, 0)
        last = 0x7FFFFFFF - (tl.max(keys, 0) & 0xFFFFFFFF)
        tl.store(out + at + s, base + last)
