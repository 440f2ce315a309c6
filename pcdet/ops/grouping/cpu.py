"""The gradient of a gather as a CPU kernel: one stream through the values, each added to its row.

Sorting the index first, so that every row is summed on its own, took several times longer: the stream is bound by
memory. Where many values meet few rows it is cut into parts with a result each, which are added in a fixed order.
"""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel
from pcdet.ops.threads import parallel_for

CHANNELS = 128  # a piece of work covers; narrower ones waste what the memory delivers
VALUES_A_ROW = 32  # of a part, on average, so that adding up the parts costs little
MOST_PARTS = 4
ROWS = 512  # a piece of the adding up covers


@Kernel
def _sum_parts(first, last, values, index, blocks, out):
    """A piece is one part of the values and one block of channels."""
    size = -(-values.shape[0] // out.shape[0])
    for piece in range(first, last):
        p, low = piece // blocks, CHANNELS * (piece % blocks)
        # Unsigned, as a negative index would count from the end: that check keeps a loop from being vectorized.
        start, width = np.uint64(low), np.uint64(min(CHANNELS, out.shape[2] - low))
        for r in range(out.shape[1]):
            for c in range(width):
                out[p, r, start + np.uint64(c)] = 0
        for k in range(p * size, min((p + 1) * size, values.shape[0])):
            r = np.uint64(index[k])
            for c in range(width):
                out[p, r, start + np.uint64(c)] += values[k, start + np.uint64(c)]


@Kernel
def _add_parts(first, last, parts):
    for r in range(first, last):
        for p in range(1, parts.shape[0]):
            for c in range(parts.shape[2]):
                parts[0, r, c] += parts[p, r, c]


def sum_rows(values: Tensor, index: Tensor, n: int) -> Tensor:
    """(K, C), (K,) int64 -> (n, C). Half precision is summed as float32."""
    wide = values if values.dtype == torch.float64 else values.float()
    k, channels = wide.shape
    parts = min(MOST_PARTS, max(1, k // (VALUES_A_ROW * max(n, 1))))
    out = wide.new_empty(parts, n, channels)
    blocks = -(-channels // CHANNELS)
    given = (wide.contiguous().numpy(), index.contiguous().numpy())
    parallel_for(_sum_parts, parts * blocks, *given, blocks, out.numpy())
    if parts > 1:
        parallel_for(_add_parts, n, out.numpy(), chunk=ROWS)
    return (out[0].clone() if parts > 1 else out[0]).to(values.dtype)
