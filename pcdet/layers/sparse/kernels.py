"""The compiled loops of sparse convolution on the CPU. Each works on a range ``[start, stop)`` without the GIL."""

import numpy as np

from pcdet.ops.compile import Kernel, device_function

TILE = 64  # output rows that share a kernel offset's weights while these are in the nearest cache


@Kernel
def output_candidates(start, stop, rows, starts, stride, shape, candidates, count):
    """Cells that the sites reach through each offset: ``candidates[k, :count[k]]``, some of them several times."""
    for k in range(start, stop):
        n = 0
        for r in range(rows.shape[0]):
            key = np.int64(rows[r, 0])
            inside = True
            for axis in range(3):
                shifted = rows[r, 1 + axis] - starts[k, axis]
                cell = shifted // stride[axis]
                inside &= cell * stride[axis] == shifted and cell >= 0 and cell < shape[axis]
                key = key * shape[axis] + cell
            if inside:
                candidates[k, n] = key
                n += 1
        count[k] = n


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
def add_products(target0, target1, scale0, scale1, values):
    """``target0 += scale0 @ values`` and ``target1 += scale1 @ values``, for (Q,), (Q,), (P,), (P,), (P, Q).

    Two targets and four rows at a time: then the multiplications, not the loads, are the bottleneck.
    """
    rows, columns = values.shape
    whole = rows - rows % 4
    for p in range(0, whole, 4):
        a0, a1, a2, a3 = scale0[p], scale0[p + 1], scale0[p + 2], scale0[p + 3]
        b0, b1, b2, b3 = scale1[p], scale1[p + 1], scale1[p + 2], scale1[p + 3]
        v0, v1, v2, v3 = values[p], values[p + 1], values[p + 2], values[p + 3]
        for q in range(columns):
            target0[q] += a0 * v0[q] + a1 * v1[q] + a2 * v2[q] + a3 * v3[q]
            target1[q] += b0 * v0[q] + b1 * v1[q] + b2 * v2[q] + b3 * v3[q]
    for p in range(whole, rows):
        for q in range(columns):
            target0[q] += scale0[p] * values[p, q]
            target1[q] += scale1[p] * values[p, q]


@device_function
def active_rows(neighbours, start, stop, rows):
    """Write the rows of ``[start, stop)`` that have a neighbour into ``rows``; return how many they are."""
    n = 0
    for row in range(start, stop):
        rows[n] = row
        n += neighbours[row] >= 0
    return n


@Kernel
def gather_multiply(start, stop, features, weight, table, out):
    """``out[m] = sum_k features[table[k, m]] @ weight[k]`` for output rows ``[start, stop)``."""
    rows = np.empty(TILE + 1, np.int64)
    spare = np.empty(out.shape[1], out.dtype)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        out[first:last] = 0
        for k in range(table.shape[0]):
            neighbours = table[k]
            n = active_rows(neighbours, first, last, rows)
            for j in range(0, n - 1, 2):
                row0, row1 = rows[j], rows[j + 1]
                add_products(out[row0], out[row1], features[neighbours[row0]], features[neighbours[row1]], weight[k])
            if n % 2:
                row = rows[n - 1]
                scale = features[neighbours[row]]
                add_products(out[row], spare, scale, scale, weight[k])


@Kernel
def weight_gradients(start, stop, chunk, features, grad, table, sums):
    """``sums[c, k] = sum of outer(features[table[k, m]], grad[m])`` over the rows ``m`` of chunk ``c``."""
    rows = np.empty(TILE + 1, np.int64)
    scales = np.empty((features.shape[1] + 1, TILE), features.dtype)
    values = np.empty((TILE, grad.shape[1]), grad.dtype)
    spare = np.empty(grad.shape[1], grad.dtype)
    channels = features.shape[1]
    for c in range(start, stop):
        for first in range(c * chunk, min((c + 1) * chunk, table.shape[1]), TILE):
            last = min(first + TILE, (c + 1) * chunk, table.shape[1])
            for k in range(table.shape[0]):
                n = active_rows(table[k], first, last, rows)
                for j in range(n):
                    values[j] = grad[rows[j]]
                    scales[:channels, j] = features[table[k, rows[j]]]
                for i in range(0, channels - 1, 2):
                    add_products(sums[c, k, i], sums[c, k, i + 1], scales[i, :n], scales[i + 1, :n], values[:n])
                if channels % 2:
                    i = channels - 1
                    add_products(sums[c, k, i], spare, scales[i, :n], scales[i, :n], values[:n])
