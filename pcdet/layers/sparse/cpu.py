"""Sparse convolution on the CPU: the work is split over output rows, offsets or fixed chunks, never over a sum.

So the result is the same for any number of threads. Every function has a twin in ``reference.py``.
"""

import numpy as np
import torch
from torch import Tensor

from pcdet.layers.sparse import kernels
from pcdet.layers.sparse.reference import sites_from_keys
from pcdet.layers.sparse.rulebook import Rulebook
from pcdet.layers.sparse.sites import Geometry, Sites
from pcdet.ops.threads import parallel_for

ROWS = 4 * kernels.TILE  # output rows a thread takes at a time: whole tiles, so that tiles never move
MAX_SUMS = 16  # partial sums of a weight gradient: bounds its memory


def output_sites(inputs: Sites, geometry: Geometry) -> Sites:
    """Sites whose receptive field holds an active input, sorted by (scene, z, y, x)."""
    shape = geometry.output_shape(inputs.spatial_shape)
    candidates = np.empty((geometry.volume, len(inputs)), np.int64)
    count = np.zeros(geometry.volume, np.int64)
    rows = (_as_3d(inputs.indices), inputs.ordered[1].numpy())
    numbers = (_starts(geometry), _triple(geometry.stride, 1), _triple(inputs.spatial_shape, 1), _triple(shape, 1))
    parallel_for(kernels.output_candidates, geometry.volume, *rows, *numbers, candidates, count)
    keys = _union([row[:n] for row, n in zip(candidates, count, strict=True)])
    return sites_from_keys(torch.from_numpy(keys), shape, inputs.batch_size)


def neighbour_table(inputs: Sites, outputs: Sites, geometry: Geometry) -> Tensor:
    """Input row that each output row sees through each kernel offset, or -1. (K, M) int32"""
    table = np.empty((geometry.volume, len(outputs)), np.int32)
    keys, rows = (part.numpy() for part in inputs.ordered)
    out_order = outputs.ordered[1].numpy()
    grid = (_starts(geometry), _triple(geometry.stride, 1), _triple(inputs.spatial_shape, 1))
    searched = geometry.volume // 2 + 1 if geometry.subm else geometry.volume
    parallel_for(kernels.match_offsets, searched, _as_3d(outputs.indices), out_order, keys, rows, *grid, table)
    if geometry.subm:  # if a sees b through an offset, b sees a through the opposite one
        parallel_for(kernels.reverse_offsets, geometry.volume // 2, table, table[::-1])
    return torch.from_numpy(table)


def reverse_table(table: Tensor, length: int) -> Tensor:
    """The pairs of a (K, M) table seen from the other side: (K, length) int32, -1 where there is none."""
    reverse = table.new_empty(table.shape[0], length)
    parallel_for(kernels.reverse_offsets, len(table), table.numpy(), reverse.numpy())
    return reverse


def product(features: Tensor, weight: Tensor, rulebook: Rulebook, inverse: bool) -> Tensor:
    """Features along a rulebook, or backwards along it, times the weight of each offset. (N, I), (K, I, O) -> (M, O)"""
    return gather_multiply(features, weight, rulebook.reverse if inverse else rulebook.table)


def product_gradient(features: Tensor, grad: Tensor, rulebook: Rulebook, inverse: bool) -> Tensor:
    """Gradient of :func:`product` by its weight. (N, I), (M, O) -> (K, I, O)"""
    return weight_gradient(features, grad, rulebook.reverse if inverse else rulebook.table)


def gather_multiply(features: Tensor, weight: Tensor, table: Tensor) -> Tensor:
    """Sum over the offsets of the neighbours' features times the weight. (N, I), (K, I, O), (K, M) -> (M, O)"""
    filled = _fill_up(weight, kernels.LANES)
    out = np.empty((table.shape[1], filled.shape[2]), filled.dtype)
    arrays = (features.contiguous().numpy(), filled, table.numpy(), out)
    parallel_for(kernels.gather_multiply, len(out), *arrays, chunk=ROWS)
    return torch.from_numpy(np.ascontiguousarray(out[:, : weight.shape[2]]))


def weight_gradient(features: Tensor, grad: Tensor, table: Tensor) -> Tensor:
    """Gradient of :func:`gather_multiply` by its weight. (N, I), (M, O), (K, M) -> (K, I, O)"""
    offsets, rows = table.shape
    channels = -(-features.shape[1] // kernels.BLOCK) * kernels.BLOCK
    filled = _fill_up(grad, kernels.LANES)
    chunk = max(8 * kernels.TILE, -(-rows // MAX_SUMS))
    sums = np.zeros((-(-rows // chunk), offsets, channels, filled.shape[1]), filled.dtype)
    arrays = (chunk, features.contiguous().numpy(), filled, table.numpy(), sums)
    parallel_for(kernels.weight_gradients, len(sums), *arrays)
    total = sums.sum(axis=0)  # by NumPy, chunk after chunk: torch would wait for its threads
    return torch.from_numpy(total[:, : features.shape[1], : grad.shape[1]])


def _fill_up(values: Tensor, multiple: int) -> np.ndarray:
    """A contiguous array with zeros appended to the last dimension until it is a multiple."""
    array = values.numpy()
    missing = -array.shape[-1] % multiple
    if missing:
        array = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
    return np.ascontiguousarray(array)


def _union(lists: list[np.ndarray]) -> np.ndarray:
    """Union of ascending lists, ascending: they are merged in pairs."""
    while len(lists) > 1:
        pairs = zip(lists[::2], lists[1::2], strict=False)
        lists = [_merge(*pair) for pair in pairs] + lists[len(lists) - len(lists) % 2 :]
    return lists[0]


def _merge(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    merged = np.empty(len(first) + len(second), np.int64)
    return merged[: kernels.merge_ascending(first, second, merged)]


def _triple(values: tuple[int, ...], fill: int) -> np.ndarray:
    """2-D numbers as 3-D ones with a first axis of one cell, so that one kernel serves both. (3,) int64"""
    return np.array((fill,) * (3 - len(values)) + tuple(values), np.int64)


def _starts(geometry: Geometry) -> np.ndarray:
    return np.stack([_triple(start, 0) for start in geometry.starts])  # (K, 3)


def _as_3d(indices: Tensor) -> np.ndarray:
    if indices.shape[1] == 4:
        return indices.numpy()
    scene, y, x = indices.unbind(dim=1)
    return torch.stack((scene, torch.zeros_like(scene), y, x), dim=1).numpy()  # (N, 4)
