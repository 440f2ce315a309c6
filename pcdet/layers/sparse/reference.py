"""Sparse convolution in plain torch: the readable twin of the CPU kernels and of ``device.py``, for tests."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pcdet.layers.sparse.sites import Geometry, Sites

if TYPE_CHECKING:
    from pcdet.layers.sparse.rulebook import Pairs, Rulebook


def output_sites(inputs: Sites, geometry: Geometry) -> Sites:
    """Sites whose receptive field holds an active input, sorted by (scene, z, y, x)."""
    shape = geometry.output_shape(inputs.spatial_shape)
    limits = inputs.indices.new_tensor(shape)  # (D,)
    stride = inputs.indices.new_tensor(geometry.stride)
    keys = []
    for start in geometry.starts:
        shifted = inputs.indices[:, 1:] - inputs.indices.new_tensor(start)  # (N, D)
        cell = torch.div(shifted, stride, rounding_mode="floor")
        hit = ((shifted % stride == 0) & (cell >= 0) & (cell < limits)).all(dim=1)
        keys.append(_number(inputs.indices[hit, 0], cell[hit], shape))
    return sites_from_keys(torch.unique(torch.cat(keys)), shape, inputs.batch_size)


def neighbour_table(inputs: Sites, outputs: Sites, geometry: Geometry) -> Tensor:
    """Input row that each output row sees through each kernel offset, or -1. (K, M) int32"""
    table = torch.full((geometry.volume, len(outputs)), -1, dtype=torch.int32, device=inputs.indices.device)
    if not len(inputs):
        return table
    keys, rows = inputs.ordered
    limits = inputs.indices.new_tensor(inputs.spatial_shape)
    stride = inputs.indices.new_tensor(geometry.stride)
    for k, start in enumerate(geometry.starts):
        cell = outputs.indices[:, 1:] * stride + inputs.indices.new_tensor(start)  # (M, D)
        inside = ((cell >= 0) & (cell < limits)).all(dim=1)
        wanted = _number(outputs.indices[:, 0], cell, inputs.spatial_shape)
        place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
        found = inside & (keys[place] == wanted)
        table[k] = torch.where(found, rows[place], -1)
    return table


def sites_from_keys(keys: Tensor, spatial_shape: tuple[int, ...], batch_size: int) -> Sites:
    """Sites from distinct cell numbers in ascending order: the reverse of ``Sites.keys``."""
    columns, rest = [], keys
    for size in reversed(spatial_shape):
        columns.append(rest % size)
        rest = torch.div(rest, size, rounding_mode="floor")
    indices = torch.stack((rest, *reversed(columns)), dim=1).to(torch.int32)  # (M, 1 + D)
    return Sites(indices, spatial_shape, batch_size)


def reverse_table(table: Tensor, length: int) -> Tensor:
    """The pairs of a (K, M) table seen from the other side: (K, length) int32, -1 where there is none."""
    offset, row = (table >= 0).nonzero(as_tuple=True)
    reverse = table.new_full((table.shape[0], length), -1)
    reverse[offset, table[offset, row].long()] = row.to(table.dtype)
    return reverse


def product(features: Tensor, weight: Tensor, rulebook: "Rulebook", inverse: bool) -> Tensor:
    """Features along a rulebook, or backwards along it, times the weight of each offset. (N, I), (K, I, O) -> (M, O)"""
    length = len(rulebook.inputs if inverse else rulebook.outputs)
    return gather_multiply(features, weight, _directed(rulebook, inverse), length)


def product_gradient(features: Tensor, grad: Tensor, rulebook: "Rulebook", inverse: bool) -> Tensor:
    """Gradient of :func:`product` by its weight. (N, I), (M, O) -> (K, I, O)"""
    return weight_gradient(features, grad, _directed(rulebook, inverse))


def gather_multiply(features: Tensor, weight: Tensor, pairs: "Pairs", length: int) -> Tensor:
    """Sum over the offsets of ``features[inputs] @ weight[k]``, added at the output rows.

    (N, I), (K, I, O) -> (length, O). No row occurs twice within an offset, so the order of the sums is fixed.
    """
    wide = torch.promote_types(features.dtype, torch.float32)  # half-precision sums would lose digits
    total = torch.zeros(length, weight.shape[2], dtype=wide, device=features.device)
    for matrix, (inputs, outputs) in zip(weight, pairs, strict=True):
        total.index_add_(0, outputs, (features.index_select(0, inputs) @ matrix).to(wide))
    return total.to(features.dtype)


def weight_gradient(features: Tensor, grad: Tensor, pairs: "Pairs") -> Tensor:
    """Gradient of :func:`gather_multiply` by its weight. (N, I), (M, O) -> (K, I, O)"""
    return torch.stack([features.index_select(0, i).T @ grad.index_select(0, o) for i, o in pairs])


def _directed(rulebook: "Rulebook", inverse: bool) -> "Pairs":
    return [(o, i) for i, o in rulebook.pairs] if inverse else rulebook.pairs


def _number(scene: Tensor, cell: Tensor, spatial_shape: tuple[int, ...]) -> Tensor:
    key = scene.long()
    for axis, size in enumerate(spatial_shape):
        key = key * size + cell[:, axis]
    return key
