"""The compiled loops of sparse convolution on the CPU. Each works on a range ``[start, stop)`` without the GIL."""

import numpy as np

from pcdet.layers.sparse.lanes import LANES, load, multiply_add, store
from pcdet.ops.compile import Kernel, device_function

TILE = 128  # rows worked on together, so that they and an offset's weights stay in the nearest cache
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
def add_products(target0, target1, target2, target3, scale0, scale1, scale2, scale3, values):
    """``target += scale @ values`` for four targets (Q,) and scales (P,) and one (P, Q); Q is a multiple of LANES.

    The four targets stay in registers, and a row of values serves all of them.
    """
    for q in range(0, values.shape[1], LANES):
        total0, total1, total2, total3 = load(target0, q), load(target1, q), load(target2, q), load(target3, q)
        for p in range(values.shape[0]):
            row = load(values[p], q)
            total0 = multiply_add(scale0[p], row, total0)
            total1 = multiply_add(scale1[p], row, total1)
            total2 = multiply_add(scale2[p], row, total2)
            total3 = multiply_add(scale3[p], row, total3)
        store(target0, q, total0)
        store(target1, q, total1)
        store(target2, q, total2)
        store(target3, q, total3)


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
                to, at = places[j : j + BLOCK], sources[j : j + BLOCK]
                add_products(
                    total[to[0]], total[to[1]], total[to[2]], total[to[3]],
                    features[at[0]], features[at[1]], features[at[2]], features[at[3]],
                    weight[k],
                )  # fmt: skip
        out[first:last] = total[: last - first]


@device_function
def gather_pairs(features, grad, sources, places, scales, values):
    """Copy the features of the sources into the columns of ``scales``, the gradients of the places into ``values``."""
    for j in range(sources.shape[0]):
        gradient, target = grad[places[j]], values[j]
        for q in range(0, grad.shape[1], LANES):
            store(target, q, load(gradient, q))
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
        for first in range(c * chunk, min((c + 1) * chunk, table.shape[1]), TILE):
            last = min(first + TILE, (c + 1) * chunk, table.shape[1])
            for k in range(table.shape[0]):
                n = active_pairs(table[k], first, last, sources, places)
                gather_pairs(features, grad[first:last], sources[:n], places[:n], scales, values)
                total = sums[c, k]
                for i in range(0, features.shape[1], BLOCK):
                    add_products(
                        total[i], total[i + 1], total[i + 2], total[i + 3],
                        scales[i], scales[i + 1], scales[i + 2], scales[i + 3],
                        values[:n],
                    )  # fmt: skip
