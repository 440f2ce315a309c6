"""Furthest point sampling as a CPU kernel that skips whole buckets of points.

Points are sorted along a space-filling curve and cut into buckets. A bucket remembers its bounding box and its
largest distance to the samples; a new sample that is farther from the box than that cannot change any of its points.
The bound uses the same float32 operations as the distances. Rounding is monotonic, so it never exceeds a computed
distance, and the samples equal those of the plain algorithm exactly.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.threads import parallel_for

BITS = 10  # of a coordinate in the curve's key, and of a digit of the radix sort
BUCKET = 512  # points; measured: vector instructions make a visit cheap, so few large buckets beat many small ones
LAST = np.int32(np.iinfo(np.int32).max)


@device_function
def _spread(value):
    """Put two zero bits between the bits of a 10-bit number."""
    value = (value | (value << 16)) & 0x030000FF
    value = (value | (value << 8)) & 0x0300F00F
    value = (value | (value << 4)) & 0x030C30C3
    return (value | (value << 2)) & 0x09249249


@device_function
def _curve_keys(points):
    """Position of each point along a Morton curve through the cube around them all."""
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for n in range(points.shape[0]):
        for axis in range(3):
            low[axis], high[axis] = min(low[axis], points[n, axis]), max(high[axis], points[n, axis])
    extent = max(high[0] - low[0], high[1] - low[1], high[2] - low[2])
    scale = ((1 << BITS) - 1) / extent if 0.0 < extent < np.inf else 0.0
    keys = np.zeros(points.shape[0], dtype=np.int64)
    for n in range(points.shape[0]):
        for axis in range(3):
            place = (points[n, axis] - low[axis]) * scale
            if place >= 0.0:  # false for a NaN
                keys[n] |= _spread(np.int64(place)) << axis
    return keys


@device_function
def _radix_order(keys):
    """Stable order of 30-bit keys."""
    order, swap = np.arange(keys.shape[0]).astype(np.int32), np.empty(keys.shape[0], dtype=np.int32)
    for digit in range(3):
        shift = digit * BITS
        start = np.zeros((1 << BITS) + 1, dtype=np.int64)
        for n in range(keys.shape[0]):
            start[((keys[n] >> shift) & ((1 << BITS) - 1)) + 1] += 1
        start = np.cumsum(start)
        for n in order:
            value = (keys[n] >> shift) & ((1 << BITS) - 1)
            swap[start[value]] = n
            start[value] += 1
        order, swap = swap, order
    return order


@device_function
def _bucket_bounds(sorted_xyz, size):
    """(buckets, 6) low x y z, high x y z of every ``size`` points."""
    bounds = np.empty((-(-sorted_xyz.shape[1] // size), 6), dtype=np.float32)
    bounds[:, :3], bounds[:, 3:] = np.inf, -np.inf
    for n in range(sorted_xyz.shape[1]):
        bound = bounds[n // size]
        for axis in range(3):
            bound[axis] = min(bound[axis], sorted_xyz[axis, n])
            bound[axis + 3] = max(bound[axis + 3], sorted_xyz[axis, n])
    return bounds


@device_function
def _distance_to_box(x, y, z, bounds, b):
    dx = max(bounds[b, 0] - x, x - bounds[b, 3], np.float32(0))
    dy = max(bounds[b, 1] - y, y - bounds[b, 4], np.float32(0))
    dz = max(bounds[b, 2] - z, z - bounds[b, 5], np.float32(0))
    return dx * dx + dy * dy + dz * dz


@device_function
def _update(x, y, z, px, py, pz, distance, order):
    """Lower a bucket's distances by a new sample; its largest distance and the lowest index that has it."""
    for j in range(px.shape[0]):
        dx, dy, dz = px[j] - x, py[j] - y, pz[j] - z
        new = dx * dx + dy * dy + dz * dz
        distance[j] = new if new < distance[j] else distance[j]
    # Floats that are not negative sort as the integers of their bits, whose maximum becomes vector instructions.
    bits = distance.view(np.int32)
    largest = bits[0]
    for j in range(bits.shape[0]):
        largest = bits[j] if bits[j] > largest else largest
    index = LAST
    for j in range(bits.shape[0]):
        index = order[j] if (bits[j] == largest and order[j] < index) else index
    return np.int32(largest), np.int32(index)


@device_function
def _sample_scene(points, size, out):
    order = _radix_order(_curve_keys(points))
    xyz = np.empty((3, points.shape[0]), dtype=np.float32)
    for j in range(order.shape[0]):
        for axis in range(3):
            xyz[axis, j] = points[order[j], axis]
    bounds = _bucket_bounds(xyz, size)
    distance = np.full(points.shape[0], np.inf, dtype=np.float32)
    largest = np.full(bounds.shape[0], np.inf, dtype=np.float32).view(np.int32)
    index = np.empty(bounds.shape[0], dtype=np.int32)
    for b in range(bounds.shape[0]):
        index[b] = order[b * size : (b + 1) * size].min()
    largest_distance = largest.view(np.float32)
    out[0] = 0
    for s in range(1, out.shape[0]):
        x, y, z = points[out[s - 1], 0], points[out[s - 1], 1], points[out[s - 1], 2]
        top, top_index = np.int32(-1), LAST
        for b in range(bounds.shape[0]):
            if _distance_to_box(x, y, z, bounds, b) < largest_distance[b]:
                i, j = b * size, (b + 1) * size
                largest[b], index[b] = _update(
                    x, y, z, xyz[0, i:j], xyz[1, i:j], xyz[2, i:j], distance[i:j], order[i:j]
                )
            if largest[b] > top or (largest[b] == top and index[b] < top_index):
                top, top_index = largest[b], index[b]
        out[s] = top_index


@Kernel
def _sample_scenes(start, stop, points, offsets, sample_offsets, size, out):
    for scene in range(start, stop):
        rows = out[sample_offsets[scene] : sample_offsets[scene + 1]]
        if rows.shape[0] > 0:
            _sample_scene(points[offsets[scene] : offsets[scene + 1]], size, rows)
            rows += offsets[scene]


def sample_stack(points: Tensor, counts: Sequence[int], samples: Sequence[int]) -> Tensor:
    """(N, 3) float32 -> (sum of samples,) int64 global indices."""
    offsets, sample_offsets = (np.cumsum([0, *lengths], dtype=np.int64) for lengths in (counts, samples))
    out = np.empty(sample_offsets[-1], dtype=np.int64)
    parallel_for(_sample_scenes, len(counts), points.contiguous().numpy(), offsets, sample_offsets, BUCKET, out)
    return torch.from_numpy(out)


def sample_batch(points: Tensor, num_samples: int) -> Tensor:
    """(B, N, 3) float32 -> (B, S) int64 indices within each cloud."""
    batch, n = points.shape[:2]
    found = sample_stack(points.reshape(batch * n, 3), [n] * batch, [num_samples] * batch)
    return found.view(batch, num_samples) - torch.arange(batch)[:, None] * n
