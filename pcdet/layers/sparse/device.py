"""Sparse convolution on a GPU without a library: sorted keys for the sites, one matrix product for a layer.

At PV-RCNN's second level, 40,000 sites, 27 offsets, 32 channels in and out: 2.2 GFLOP if every neighbour exists, of
which a third does. The pairs that exist could be gathered offset by offset, 27 small products and as many additions
to scattered rows, 81 launches, and the host would have to know how many pairs each offset has. Here the neighbours of
a row, zeros where there is none, are gathered side by side, (rows, 27 * 32), and multiplied by all weights at once:
138 MB are written and read again, 0.1 ms at 3 TB/s, for a product at full speed and no wait. No sum depends on chance,
neither forward nor backward. The table of neighbours is a binary search of 1.1 M keys among 40,000, 16 steps each.
The host waits once in a strided layer, for the number of its sites, and never in a submanifold one.

Every function has a twin in ``reference.py``; all of them run on a CPU as well, where tests compare them.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pcdet.layers.sparse.reference import sites_from_keys
from pcdet.layers.sparse.sites import Geometry, Sites

if TYPE_CHECKING:
    from pcdet.layers.sparse.rulebook import Rulebook

GATHERED = 1 << 26  # numbers gathered at once: bounds the memory, 256 MiB in float32


@lru_cache(maxsize=256)
def _axis_starts(geometry: Geometry, axis: int, device: torch.device) -> Tensor:
    """What to add to ``output * stride`` to get the input cell, for each offset along one axis. (K_axis, 1) int64

    Kept on the device: to copy them there anew makes the host wait.
    """
    count, step, padding = geometry.kernel[axis], geometry.dilation[axis], geometry.padding[axis]
    return (torch.arange(count) * step - padding).unsqueeze(1).to(device)


def _keys_of_offsets(scene: Tensor, cells: list[Tensor], valid: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Number of the cell under each kernel offset, -1 where one axis is not valid. D times (K_axis, N) -> (K, N)"""
    key, inside = scene, torch.ones_like(scene, dtype=torch.bool)
    for cell, is_valid, size in zip(cells, valid, shape, strict=True):
        key = key.unsqueeze(-2) * size + cell  # (..., K_axis, N)
        inside = inside.unsqueeze(-2) & is_valid
    return torch.where(inside, key, -1).flatten(0, -2)


def output_sites(inputs: Sites, geometry: Geometry) -> Sites:
    """Sites whose receptive field holds an active input, sorted by (scene, z, y, x)."""
    shape = geometry.output_shape(inputs.spatial_shape)
    cells, valid = [], []
    for axis, (stride, size) in enumerate(zip(geometry.stride, shape, strict=True)):
        shifted = inputs.indices[:, 1 + axis].long() - _axis_starts(geometry, axis, inputs.indices.device)
        cell = torch.div(shifted, stride, rounding_mode="floor")  # (K_axis, N)
        cells.append(cell)
        valid.append((cell * stride == shifted) & (cell >= 0) & (cell < size))
    keys = _keys_of_offsets(inputs.indices[:, 0].long(), cells, valid, shape).flatten()  # (K * N,)
    return sites_from_keys(_distinct(keys), shape, inputs.batch_size)


def _distinct(keys: Tensor) -> Tensor:
    """The distinct keys that are not negative, ascending. The host waits for their number, and for nothing else."""
    keys = keys.sort().values
    opens = keys >= 0
    opens[1:] &= keys[1:] != keys[:-1]
    place = opens.cumsum(0)
    count = int(place[-1]) if len(keys) else 0
    return keys.new_empty(count + 1).scatter_(0, torch.where(opens, place - 1, count), keys)[:count]


def neighbour_table(inputs: Sites, outputs: Sites, geometry: Geometry) -> Tensor:
    """Input row that each output row sees through each kernel offset, or -1. (K, M) int32"""
    if not len(inputs):
        return inputs.indices.new_full((geometry.volume, len(outputs)), -1)
    cells, valid = [], []
    for axis, (stride, size) in enumerate(zip(geometry.stride, inputs.spatial_shape, strict=True)):
        cell = outputs.indices[:, 1 + axis].long() * stride + _axis_starts(geometry, axis, inputs.indices.device)
        cells.append(cell)  # (K_axis, M)
        valid.append((cell >= 0) & (cell < size))
    wanted = _keys_of_offsets(outputs.indices[:, 0].long(), cells, valid, inputs.spatial_shape)  # (K, M)
    keys, rows = inputs.ordered
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, rows[place], -1).int()


def reverse_table(table: Tensor, length: int) -> Tensor:
    """The pairs of a (K, M) table seen from the other side: (K, length) int32, -1 where there is none."""
    row = torch.arange(table.shape[1], dtype=table.dtype, device=table.device).expand_as(table)
    spare = torch.where(table >= 0, table, length).long()  # the last column collects what meets nobody
    return table.new_full((len(table), length + 1), -1).scatter_(1, spare, row)[:, :length]


def product(features: Tensor, weight: Tensor, rulebook: "Rulebook", inverse: bool) -> Tensor:
    """Features along a rulebook, or backwards along it, times the weight of each offset. (N, I), (K, I, O) -> (M, O)"""
    return gather_multiply(features, weight, rulebook.reverse if inverse else rulebook.table)


def product_gradient(features: Tensor, grad: Tensor, rulebook: "Rulebook", inverse: bool) -> Tensor:
    """Gradient of :func:`product` by its weight. (N, I), (M, O) -> (K, I, O)"""
    return weight_gradient(features, grad, rulebook.reverse if inverse else rulebook.table)


def gather_multiply(features: Tensor, weight: Tensor, table: Tensor) -> Tensor:
    """Sum over the offsets of the neighbours' features times the weight. (N, I), (K, I, O), (K, M) -> (M, O)"""
    matrix = weight.flatten(0, 1)  # (K * I, O)
    out = features.new_empty(table.shape[1], matrix.shape[1])
    for part, neighbours in _gathered(features, table):
        out[part] = neighbours @ matrix
    return out


def weight_gradient(features: Tensor, grad: Tensor, table: Tensor) -> Tensor:
    """Gradient of :func:`gather_multiply` by its weight. (N, I), (M, O), (K, M) -> (K, I, O)"""
    offsets, channels = len(table), features.shape[1]
    wide = torch.promote_types(features.dtype, torch.float32)  # half-precision sums would lose digits
    total = torch.zeros(offsets * channels, grad.shape[1], dtype=wide, device=grad.device)
    for part, neighbours in _gathered(features, table):
        total += neighbours.T @ grad[part]
    return total.to(features.dtype).view(offsets, channels, -1)


def _gathered(features: Tensor, table: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some output rows at a time, and the features of their neighbours side by side, zeros for those that lack."""
    offsets, length = table.shape
    filled = F.pad(features, (0, 0, 0, 1))  # (N + 1, I): the last row is what nobody sees
    step = max(1, GATHERED // max(1, offsets * features.shape[1]))
    for first in range(0, length, step):
        part = slice(first, min(first + step, length))
        rows = table[:, part].T.long()  # (rows, K)
        rows = torch.where(rows >= 0, rows, len(features))
        yield part, filled.index_select(0, rows.flatten()).view(len(rows), offsets * features.shape[1])
