"""Three nearest neighbours through a k-d tree, and interpolation, as CPU kernels.

The tree halves its points until a leaf holds few. Its nodes are numbered as a heap and hold consecutive points, so
that their ranges need no memory. A node whose bounding box is farther away than the third best so far is skipped.
The bound uses the same float32 operations as the distances. Rounding is monotonic, so it never exceeds a computed
distance, and the neighbours equal those of a scan in index order exactly, ties included.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.threads import parallel_for

LEAF = 16  # points a leaf holds at most
DEEPEST = 48  # levels: more than any cloud needs
QUERIES = 256  # a piece of work covers
CHANNELS = 128  # a piece of the interpolation's gradient covers
ROWS = 256  # a piece of the interpolation covers


@device_function
def _levels(n):
    """Levels of inner nodes above the leaves."""
    levels = 0
    while (n >> levels) > LEAF - 1:
        levels += 1
    return levels


@device_function
def _node_start(n, level, place):
    """The first point of a level's node number ``place``; that of the next one ends it."""
    return (n * place) >> level


@device_function
def _bound(xyz, first, last, box):
    """Low x y z and high x y z of some points. What is not finite can be no neighbour and is left out."""
    box[:3], box[3:] = np.inf, -np.inf
    for n in range(first, last):
        if np.isfinite(xyz[n, 0] + xyz[n, 1] + xyz[n, 2]):
            for axis in range(3):
                box[axis], box[axis + 3] = min(box[axis], xyz[n, axis]), max(box[axis + 3], xyz[n, axis])


@device_function
def _swap(xyz, order, i, j):
    order[i], order[j] = order[j], order[i]
    for axis in range(3):
        xyz[i, axis], xyz[j, axis] = xyz[j, axis], xyz[i, axis]


@device_function
def _split(xyz, order, first, last, middle, axis):
    """Reorder points until none before ``middle`` has a larger coordinate than any from there on (quickselect)."""
    while last - first > 1:
        pivot = xyz[(first + last) >> 1, axis]
        i, j = first, last - 1
        while i <= j:
            while xyz[i, axis] < pivot:
                i += 1
            while pivot < xyz[j, axis]:
                j -= 1
            if i <= j:
                _swap(xyz, order, i, j)
                i, j = i + 1, j - 1
        if middle <= j:
            last = j + 1
        elif middle >= i:
            first = i
        else:
            break


@device_function
def _build_tree(xyz, order, boxes):
    n = xyz.shape[0]
    levels = _levels(n)
    for level in range(levels + 1):
        for place in range(1 << level):
            first, last = _node_start(n, level, place), _node_start(n, level, place + 1)
            box = boxes[(1 << level) - 1 + place]
            _bound(xyz, first, last, box)
            if level < levels:
                axis = 0
                for other in range(1, 3):
                    if box[other + 3] - box[other] > box[axis + 3] - box[axis]:
                        axis = other
                _split(xyz, order, first, last, _node_start(n, level + 1, 2 * place + 1), axis)


@Kernel
def _build_trees(first, last, offsets, xyz, order, boxes):
    for b in range(first, last):
        i, j = offsets[b], offsets[b + 1]
        if i < j:
            _build_tree(xyz[i:j], order[i:j], boxes[i:j])


@device_function
def _distance_to_box(x, y, z, boxes, node):
    dx = max(boxes[node, 0] - x, x - boxes[node, 3], np.float32(0))
    dy = max(boxes[node, 1] - y, y - boxes[node, 4], np.float32(0))
    dz = max(boxes[node, 2] - z, z - boxes[node, 5], np.float32(0))
    return dx * dx + dy * dy + dz * dz


@device_function
def _insert(square, n, squares, index):
    """Insert point ``n`` into the three nearest ones, ordered by distance and then by index."""
    place = 2
    while place > 0 and (square < squares[place - 1] or (square == squares[place - 1] and n < index[place - 1])):
        squares[place], index[place] = squares[place - 1], index[place - 1]
        place -= 1
    squares[place], index[place] = square, n


@device_function
def _search(x, y, z, xyz, order, boxes, levels, stack, away, squares, index):
    """``stack`` and ``away`` hold nodes that wait, and their distances; the nearer child comes first."""
    inner = (1 << levels) - 1
    stack[0], away[0], waiting = 0, np.float32(0), 1
    while waiting > 0:
        waiting -= 1
        node = stack[waiting]
        if away[waiting] > squares[2]:
            continue
        while node < inner:
            near, far = 2 * node + 1, 2 * node + 2
            to_near, to_far = _distance_to_box(x, y, z, boxes, near), _distance_to_box(x, y, z, boxes, far)
            if to_far < to_near:
                near, far, to_near, to_far = far, near, to_far, to_near
            if to_far <= squares[2]:
                stack[waiting], away[waiting] = far, to_far
                waiting += 1
            node = near
        place = node - inner
        for j in range(_node_start(xyz.shape[0], levels, place), _node_start(xyz.shape[0], levels, place + 1)):
            dx, dy, dz = xyz[j, 0] - x, xyz[j, 1] - y, xyz[j, 2] - z
            square = dx * dx + dy * dy + dz * dz
            if square < squares[2] or (square == squares[2] and order[j] < index[2]):
                _insert(square, order[j], squares, index)


@Kernel
def _search_trees(first, last, unknown, unknown_offsets, offsets, xyz, order, boxes, squares, index):
    stack, away = np.empty(DEEPEST, dtype=np.int64), np.empty(DEEPEST, dtype=np.float32)
    for b in range(offsets.shape[0] - 1):
        i, j = offsets[b], offsets[b + 1]
        tree = xyz[i:j], order[i:j], boxes[i:j], _levels(j - i)
        for q in range(max(first, unknown_offsets[b]), min(last, unknown_offsets[b + 1])):
            squares[q], index[q] = np.inf, -1
            x, y, z = unknown[q, 0], unknown[q, 1], unknown[q, 2]
            if i < j:
                _search(x, y, z, *tree, stack, away, squares[q], index[q])
            for k in range(3):
                index[q, k] = max(index[q, k], 0) + (i if i < j else 0)


def three_nn_stack(
    unknown: Tensor, unknown_counts: Sequence[int], known: Tensor, known_counts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """(N, 3), (M, 3) float32 -> squared distances (N, 3) float32, global indices (N, 3) int64."""
    unknown_offsets, offsets = (np.cumsum([0, *lengths], dtype=np.int64) for lengths in (unknown_counts, known_counts))
    xyz = known.contiguous().numpy().copy()
    order = np.concatenate([np.empty(0, np.int32), *(np.arange(count, dtype=np.int32) for count in known_counts)])
    boxes = np.empty((len(xyz), 6), dtype=np.float32)  # a tree of n points has at most max(1, n / 4) nodes
    parallel_for(_build_trees, len(known_counts), offsets, xyz, order, boxes)
    squares, index = np.empty((len(unknown), 3), dtype=np.float32), np.empty((len(unknown), 3), dtype=np.int64)
    queries = (unknown.contiguous().numpy(), unknown_offsets, offsets, xyz, order, boxes)
    parallel_for(_search_trees, len(unknown), *queries, squares, index, chunk=QUERIES)
    return torch.from_numpy(squares), torch.from_numpy(index)


@Kernel
def _interpolate_rows(first, last, features, index, weight, out):
    for n in range(first, last):
        i, j, k = np.uint64(index[n, 0]), np.uint64(index[n, 1]), np.uint64(index[n, 2])
        for c in range(out.shape[1]):
            out[n, c] = weight[n, 0] * features[i, c] + weight[n, 1] * features[j, c] + weight[n, 2] * features[k, c]


@Kernel
def _spread_rows(first, last, values, index, weight, out):
    """A piece is a block of channels, for which it reads all values in order."""
    for piece in range(first, last):
        low = CHANNELS * piece
        # Unsigned, as a negative index would count from the end: that check keeps a loop from being vectorized.
        start, width = np.uint64(low), np.uint64(min(CHANNELS, out.shape[1] - low))
        for r in range(out.shape[0]):
            for c in range(width):
                out[r, start + np.uint64(c)] = 0
        for n in range(values.shape[0]):
            for k in range(3):
                r, share = np.uint64(index[n, k]), weight[n, k]
                for c in range(width):
                    out[r, start + np.uint64(c)] += share * values[n, start + np.uint64(c)]


def interpolate(features: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """(M, C), (N, 3), (N, 3) -> (N, C). Half precision is summed as float32."""
    wide = _wide(features)
    out = wide.new_empty(len(index), features.shape[1])
    given = (wide.numpy(), index.contiguous().numpy(), weight.to(wide.dtype).contiguous().numpy())
    parallel_for(_interpolate_rows, len(index), *given, out.numpy(), chunk=ROWS)
    return out.to(features.dtype)


def spread(values: Tensor, index: Tensor, weight: Tensor, m: int) -> Tensor:
    """The adjoint of :func:`interpolate`. (N, C), (N, 3), (N, 3) -> (m, C)."""
    wide = _wide(values)
    out = wide.new_empty(m, values.shape[1])
    given = (wide.numpy(), index.contiguous().numpy(), weight.to(wide.dtype).contiguous().numpy())
    parallel_for(_spread_rows, -(-values.shape[1] // CHANNELS), *given, out.numpy())
    return out.to(values.dtype)


def _wide(values: Tensor) -> Tensor:
    return (values if values.dtype == torch.float64 else values.float()).contiguous()
