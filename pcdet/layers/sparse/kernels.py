"""The compiled loops of sparse convolution on the CPU. Each works on a range ``[start, stop)`` without the GIL."""

import numpy as np

from pcdet.layers.sparse.lanes import LANES, load, multiply_add, store
from pcdet.ops.compile import Kernel, device_function

TILE = 256  # rows worked on together, so that they and an offset's weights stay in the nearest cache
BLOCK = 4  # rows whose sums are in registers at a time


@device_function
def reach_of_offset(start, stride, size, reach):
    """``reach[i]`` is the output that sees input ``i`` along one axis through one offset, or -1."""
    for i in range(reach.shape[0]):
        cell = (i - start) // stride
        reach[i] = cell if cell * stride == i - start and cell >= 0 and cell < size else -1


@Kernel
def output_candidates(start, stop, rows, order, starts, stride, in_shape, shape, candidates, count):
    """Cells that the sites reach through each offset: ``candidates[k, :count[k]]``, ascending."""
    reach = np.empty((3, in_shape.max()), np.int64)
    for k in range(start, stop):
        for axis in range(3):
            reach_of_offset(starts[k, axis], stride[axis], shape[axis], reach[axis, : in_shape[axis]])
        n = 0
        for row in order:
            z, y, x = reach[0, rows[row, 1]], reach[1, rows[row, 2]], reach[2, rows[row, 3]]
            candidates[k, n] = ((rows[row, 0] * shape[0] + z) * shape[1] + y) * shape[2] + x
            n += z >= 0 and y >= 0 and x >= 0
        count[k] = n


@Kernel
def merge_ascending(first, second, merged):
    """Write the union of two ascending lists without repetitions into ``merged``; return its length."""
    i = j = n = 0
    while i < first.shape[0] and j < second.shape[0]:
        a, b = first[i], second[j]
        merged[n] = min(a, b)
        i += a <= b
        j += b <= a
        n += 1
    while i < first.shape[0]:
        merged[n] = first[i]
        i += 1
        n += 1
    while j < second.shape[0]:
        merged[n] = second[j]
        j += 1
        n += 1
    return n


@Kernel
def match_offsets(start, stop, outputs, out_order, in_keys, in_rows, starts, stride, shape, table):
    """Neighbour table by merging two ascending lists: the cells that the outputs look at, and the active cells."""
    for k in range(start, stop):
        j = 0
        for position in range(out_order.shape[0]):
            row = out_order[position]
            z = outputs[row, 1] * stride[0] + starts[k, 0]
            y = outputs[row, 2] * stride[1] + starts[k, 1]
            x = outputs[row, 3] * stride[2] + starts[k, 2]
            found = -1
            if z >= 0 and z < shape[0] and y >= 0 and y < shape[1] and x >= 0 and x < shape[2]:
                key = ((outputs[row, 0] * shape[0] + z) * shape[1] + y) * shape[2] + x
                while j < in_keys.shape[0] and in_keys[j] < key:
                    j += 1
                if j < in_keys.shape[0] and in_keys[j] == key:
                    found = in_rows[j]
            table[k, row] = found


@Kernel
def reverse_offsets(start, stop, table, reverse):
    """``reverse[k, n] = m`` where ``table[k, m] = n``, and -1 where no m sees n."""
    for k in range(start, stop):
        reverse[k, :] = -1
        for m in range(table.shape[1]):
            if table[k, m] >= 0:
                reverse[k, table[k, m]] = m


@device_function
def add_products(totals, t0, t1, t2, t3, scales, s0, s1, s2, s3, values, count):
    """``totals[t] += scales[s, :count] @ values[:count]`` for four rows t and s; LANES divides the columns of totals.

    The four rows stay in registers, and a row of values serves all of them.
    """
    for q in range(0, totals.shape[1], LANES):
        sum0, sum1, sum2, sum3 = load(totals, t0, q), load(totals, t1, q), load(totals, t2, q), load(totals, t3, q)
        for p in range(count):
            row = load(values, p, q)
            sum0 = multiply_add(scales[s0, p], row, sum0)
            sum1 = multiply_add(scales[s1, p], row, sum1)
            sum2 = multiply_add(scales[s2, p], row, sum2)
            sum3 = multiply_add(scales[s3, p], row, sum3)
        store(totals, t0, q, sum0)
        store(totals, t1, q, sum1)
        store(totals, t2, q, sum2)
        store(totals, t3, q, sum3)


@device_function
def active_pairs(seen, start, stop, sources, places):
    """The rows of ``[start, stop)`` that see an input: ``sources`` gets the inputs, ``places`` the rows less ``start``.

    Returns how many they are. What follows them, up to a whole block, repeats a source and goes to the place TILE.
    """
    n = 0
    for row in range(start, stop):
        sources[n] = seen[row]
        places[n] = row - start
        n += seen[row] >= 0
    sources[n : n + BLOCK - 1] = sources[0]
    places[n : n + BLOCK - 1] = TILE
    return n


@Kernel
def gather_multiply(start, stop, features, weight, table, out):
    """``out[m] = sum_k features[table[k, m]] @ weight[k]`` for output rows ``[start, stop)``."""
    sources, places = np.empty(TILE + BLOCK, np.int64), np.empty(TILE + BLOCK, np.int64)
    total = np.empty((TILE + 1, out.shape[1]), out.dtype)  # nobody reads the last row
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        total[:] = 0
        for k in range(table.shape[0]):
            for j in range(0, active_pairs(table[k], first, last, sources, places), BLOCK):
                add_products(
                    total, places[j], places[j + 1], places[j + 2], places[j + 3],
                    features, sources[j], sources[j + 1], sources[j + 2], sources[j + 3],
                    weight[k], features.shape[1],
                )  # fmt: skip
        out[first:last] = total[: last - first]


@device_function
def gather_pairs(features, grad, first, sources, places, n, scales, values):
    """Copy the features of n sources into the columns of ``scales``, the gradients of the places into ``values``."""
    for j in range(n):
        for q in range(0, grad.shape[1], LANES):
            store(values, j, q, load(grad, first + places[j], q))
        feature = features[sources[j]]
        for i in range(features.shape[1]):
            scales[i, j] = feature[i]


@Kernel
def weight_gradients(start, stop, chunk, features, grad, table, sums):
    """``sums[c, k] = sum of outer(features[table[k, m]], grad[m])`` over the rows ``m`` of chunk ``c``.

    ``sums`` starts with zeros; its second last dimension is that of the features, filled up to whole blocks.
    """
    sources, places = np.empty(TILE + BLOCK, np.int64), np.empty(TILE + BLOCK, np.int64)
    scales = np.zeros((sums.shape[2], TILE + LANES), features.dtype)  # rows a power of two apart would share cache sets
    values = np.empty((TILE, grad.shape[1]), grad.dtype)
    for c in range(start, stop):
        end = min((c + 1) * chunk, table.shape[1])
        for first in range(c * chunk, end, TILE):
            for k in range(table.shape[0]):
                n = active_pairs(table[k], first, min(first + TILE, end), sources, places)
                gather_pairs(features, grad, first, sources, places, n, scales, values)
                total = sums[c, k]
                for i in range(0, features.shape[1], BLOCK):
                    add_products(total, i, i + 1, i + 2, i + 3, scales, i, i + 1, i + 2, i + 3, values, n)
