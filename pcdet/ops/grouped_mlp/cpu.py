"""The shared MLP of set abstraction as CPU kernels around matrix products that fit a core's cache.

Rows go through a layer tile by tile. What is kept between two layers is what the first one's norm gets, as that norm
needs the statistics of all rows; the norm, the ReLU and the gather are done again wherever they are needed. Three
things save arithmetic besides:

* A ball that holds fewer points than places repeats its first one. That row goes through the MLP once and counts in
  the statistics as often as it is there.
* A norm is monotone, so the maximum of the last layer is taken before its norm: its rows are never kept. Columns with
  a negative gain are multiplied with -1, which turns a minimum into a maximum.
* The gradient ``D`` (R, C) of the last layer's rows ``Y = H W.T`` is a sparse part, one row for a group and a channel,
  and a part linear in ``Y``: ``D = S - offset - (Y - mean) slope``. So ``D W = S W - H (W.T slope W) - ...`` and
  ``D.T H = S.T H - slope W (H.T H) - ...``, products of the narrower width alone that need neither ``Y`` nor ``D``.

Sums are float32 within a group and float64 beyond it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel
from pcdet.ops.products import product
from pcdet.ops.threads import one_torch_thread, parallel_parts

TILE = 512 * 1024  # values in the widest rows of a tile, so that it stays in a core's cache
STEP = 256  # a tile's rows are a multiple of
PARTS = 16  # pieces of work, each with sums of its own, whatever the number of threads


# Kernels get the groups [first, last) and the rows of these alone: the tile.


@Kernel
def _gather(first, last, start, index, points, per_cloud, table, shift, out):
    """What the first norm gets. A cloud has so many points in the table, to which its indices refer, and groups."""
    for s in range(first, last):
        cloud, base = s // per_cloud * points, start[s] - start[first]
        for k in range(start[s + 1] - start[s]):
            r, p = np.uint64(base + k), np.uint64(cloud + index[s, k])
            for c in range(table.shape[1]):
                out[r, c] = table[p, c] - shift[s, c]


@Kernel
def _activate(rows, mean, scale, bias, out):
    for r in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            out[r, c] = max((rows[r, c] - mean[c]) * scale[c] + bias[c], np.float32(0.0))


@Kernel
def _moments(first, last, start, size, rows, sums):
    """Sums of ``x - x0`` and of its square, x0 being the first row, added to ``sums``."""
    width = rows.shape[1]
    total, total2 = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for s in range(first, last):
        base, count = start[s] - start[first], start[s + 1] - start[s]
        total[:], total2[:] = 0.0, 0.0
        for k in range(count):
            r, n = np.uint64(base + k), np.float32(size - count + 1 if k == 0 else 1)
            for c in range(width):
                x = rows[r, c] - rows[0, c]
                total[c] += n * x
                total2[c] += n * x * x
        for c in range(width):
            sums[0, c] += total[c]
            sums[1, c] += total2[c]


@Kernel
def _maxima(first, last, start, size, rows, top, places, sums):
    """The maximum of each group and its place, and what :func:`_moments` makes of the rows."""
    width = rows.shape[1]
    total, total2 = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for s in range(first, last):
        base, count = start[s] - start[first], start[s + 1] - start[s]
        r, n = np.uint64(base), np.float32(size - count + 1)
        for c in range(width):
            top[s, c], places[s, c] = rows[r, c], 0
            x = rows[r, c] - rows[0, c]
            total[c] = n * x
            total2[c] = n * x * x
        for k in range(1, count):
            r, place = np.uint64(base + k), np.int32(k)
            for c in range(width):
                larger = rows[r, c] > top[s, c]
                top[s, c] = rows[r, c] if larger else top[s, c]
                places[s, c] = place if larger else places[s, c]
                x = rows[r, c] - rows[0, c]
                total[c] += x
                total2[c] += x * x
        for c in range(width):
            sums[0, c] += total[c]
            sums[1, c] += total2[c]


@Kernel
def _to_last_input(first, last, start, size, sparse, places, weight, shared, out):
    """``S W - n (out + shared)`` in place of ``out``, which holds ``H (W.T slope W)``."""
    width = out.shape[1]
    for s in range(first, last):
        base, count = start[s] - start[first], start[s + 1] - start[s]
        for k in range(count):
            r, n = np.uint64(base + k), np.float32(size - count + 1 if k == 0 else 1)
            for c in range(width):
                out[r, c] = -n * (out[r, c] + shared[c])
        for j in range(sparse.shape[1]):
            value = sparse[s, j]
            if value != 0:
                r = np.uint64(base + places[s, j])
                for c in range(width):
                    out[r, c] += value * weight[j, c]


@Kernel
def _to_last_weight(first, last, start, size, sparse, places, hidden, out, sums):
    """Adds ``S.T H`` to ``out`` and the column sums of H to ``sums``; then each row of H times the root of n."""
    width = hidden.shape[1]
    total = np.empty(width, dtype=np.float32)
    for s in range(first, last):
        base, count = start[s] - start[first], start[s + 1] - start[s]
        for j in range(sparse.shape[1]):
            value = sparse[s, j]
            if value != 0:
                r = np.uint64(base + places[s, j])
                for c in range(width):
                    out[j, c] += value * hidden[r, c]
        total[:] = 0.0
        for k in range(count):
            r, n = np.uint64(base + k), np.float32(size - count + 1 if k == 0 else 1)
            for c in range(width):
                total[c] += n * hidden[r, c]
        for c in range(width):
            sums[c] += total[c]
            hidden[np.uint64(base), c] *= np.sqrt(np.float32(size - count + 1))


@Kernel
def _turn(rows, out):
    """Rows (64 k, C) -> (C, 64 k), block by block: twice as fast as torch's copy of a transposed tensor."""
    width = rows.shape[1]
    for top in range(0, rows.shape[0], 64):
        for left in range(0, width, 8):
            if left + 8 <= width:
                for r in range(top, top + 64):
                    for k in range(8):
                        out[np.uint64(left + k), np.uint64(r)] = rows[np.uint64(r), np.uint64(left + k)]
            else:
                for r in range(top, top + 64):
                    for c in range(left, width):
                        out[np.uint64(c), np.uint64(r)] = rows[np.uint64(r), np.uint64(c)]


@Kernel
def _clip(first, last, start, rows, mean, hidden, grad, out, sums):
    """The gradient that passes the ReLU, and its sum and that of its product with ``x - mean``, added to ``sums``."""
    width = rows.shape[1]
    total, total2 = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for s in range(first, last):
        total[:], total2[:] = 0.0, 0.0
        for r in range(start[s] - start[first], start[s + 1] - start[first]):
            row = np.uint64(r)
            for c in range(width):
                g = grad[row, c] if hidden[row, c] > 0 else np.float32(0.0)
                out[row, c] = g
                total[c] += g
                total2[c] += g * (rows[row, c] - mean[c])
        for c in range(width):
            sums[0, c] += total[c]
            sums[1, c] += total2[c]


@Kernel
def _through_norm(first, last, start, size, rows, mean, scale, offset, slope, grad, out):
    """The gradient of what a norm gets, from that of what it makes of it; ``out`` may be ``grad``."""
    for s in range(first, last):
        base, count = start[s] - start[first], start[s + 1] - start[s]
        for k in range(count):
            r, n = np.uint64(base + k), np.float32(size - count + 1 if k == 0 else 1)
            for c in range(rows.shape[1]):
                out[r, c] = scale[c] * grad[r, c] - n * (offset[c] + (rows[r, c] - mean[c]) * slope[c])


@Kernel
def _scatter(first, last, start, index, points, per_cloud, cloud, rows, to_table, to_shift):
    """Adds the rows to those of the table that they came from; ``to_table`` begins with a certain cloud."""
    for s in range(first, last):
        base = (s // per_cloud - cloud) * points
        for c in range(rows.shape[1]):
            to_shift[s, c] = 0
        for k in range(start[s + 1] - start[s]):
            r, p = np.uint64(start[s] - start[first] + k), np.uint64(base + index[s, k])
            for c in range(rows.shape[1]):
                to_shift[s, c] -= rows[r, c]
                to_table[p, c] += rows[r, c]


class _Norm(NamedTuple):
    """``max((x - mean) * scale + bias, 0)``; all (C,) float32 except the float64 ``inverse`` deviation."""

    mean: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, mean: np.ndarray, var: np.ndarray, gain: Tensor, bias: Tensor, eps: float) -> "_Norm":
        inverse = 1 / np.sqrt(var.astype(np.float64) + eps)
        return cls(mean, (gain.numpy() * inverse).astype(np.float32), bias.numpy(), inverse)

    def backward(self, sums: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Sums of the gradient and of its product with ``x - mean`` -> those of gain and bias, and offset and slope."""
        offset = (self.scale * sums[0] / count).astype(np.float32)
        slope = (self.scale * sums[1] * self.inverse**2 / count).astype(np.float32)
        return (sums[1] * self.inverse).astype(np.float32), sums[0].astype(np.float32), offset, slope


class _Groups:
    """The rows of all groups, in tiles: the distinct points of each ball."""

    def __init__(self, table: Tensor, shift: Tensor, index: Tensor, found: Tensor, weights: list[Tensor], threads: int):
        self.widths = [table.shape[2], *(len(w) for w in weights)]
        self.table, self.shift = table.flatten(0, 1).numpy(), shift.flatten(0, 1).numpy()  # (B * N, C), (M, C)
        self.index, self.points = index.flatten(0, 1).numpy(), table.shape[1]  # (M, G)
        self.per_cloud, self.size = index.shape[1:]
        self.places = self.index, self.points, self.per_cloud
        self.count = self.index.size  # places, those filled with a repetition among them
        self.threads = threads
        self.start = np.zeros(len(self.index) + 1, dtype=np.int64)
        np.cumsum(found.flatten().clamp(1, self.size).numpy(), out=self.start[1:])
        self.rows = int(self.start[-1])
        # All tiles have one height, which depends on shapes alone, as products are compiled for it.
        rows = min(max(TILE // max(self.widths), self.size), self.count)
        self.height = -(-rows // STEP) * STEP
        tiles = self._tiles()
        self.parts = [tiles[i * len(tiles) // PARTS : (i + 1) * len(tiles) // PARTS] for i in range(PARTS)]
        self.parts = [part for part in self.parts if part]

    def _tiles(self) -> list[tuple[int, int]]:
        """[first, last) groups, as many as fit into a tile."""
        tiles, first = [], 0
        while first < len(self.index):
            last = int(np.searchsorted(self.start, self.start[first] + self.height, side="right")) - 1
            tiles.append((first, last))
            first = last
        return tiles

    def tiles(
        self, part: int, stored: np.ndarray | None
    ) -> Iterator[tuple[tuple[int, int, np.ndarray], slice, np.ndarray]]:
        """Of each tile: what kernels begin with, its rows, and its values before a norm: the stored ones or the first.

        The first ones lie in a buffer that is used again.
        """
        buffer = self.buffer(self.table.shape[1]).numpy() if stored is None else None
        for first, last in self.parts[part]:
            tile, rows = (first, last, self.start), slice(self.start[first], self.start[last])
            if stored is None:
                values = buffer[: rows.stop - rows.start]
                _gather(*tile, *self.places, self.table, self.shift, values)
            else:
                values = stored[rows]
            yield tile, rows, values

    def of_clouds(self, values: Tensor) -> Tensor:
        """Values (M, C) of the groups -> (B, S, C)"""
        return values.view(-1, self.per_cloud, values.shape[1])

    def each_part(self, work: Callable[[int], None]) -> None:
        parallel_parts(work, len(self.parts), self.threads)

    def buffer(self, width: int) -> Tensor:
        """A tile of values; those of its rows that no group has are not looked at."""
        return torch.empty(self.height, width)


class _Moments:
    """Mean and variance of rows whose tiles are seen one by one, in any order."""

    def __init__(self, groups: _Groups, width: int):
        self.groups = groups
        self.found: dict[int, tuple[int, np.ndarray, np.ndarray]] = {}

    def add(self, tile: tuple[int, int, np.ndarray], rows: np.ndarray, tops: tuple[np.ndarray, ...] = ()) -> None:
        """The maxima of the groups, and their places, go to ``tops`` if given."""
        first, last, _ = tile
        sums = np.zeros((2, rows.shape[1]))
        (_maxima if tops else _moments)(*tile, self.groups.size, rows, *tops, sums)
        count = (last - first) * self.groups.size
        shift = sums[0] / count
        self.found[first] = count, rows[0] + shift, sums[1] - sums[0] * shift

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """(C,), (C,)"""
        counts, means, squares = (np.stack(x) for x in zip(*(self.found[i] for i in sorted(self.found)), strict=True))
        mean = counts @ means / counts.sum()  # (C,)
        squares = squares.sum(axis=0) + counts @ (means - mean) ** 2
        return mean.astype(np.float32), np.maximum(squares / counts.sum(), 0).astype(np.float32)


def _norms(widths: list[int], mean: Tensor, var: Tensor, gain: Tensor, bias: Tensor, eps: float) -> list[_Norm]:
    split = (x.split(widths) for x in (mean, var, gain, bias))
    return [_Norm.of(m.numpy(), v.numpy(), g, b, eps) for m, v, g, b in zip(*split, strict=True)]


def _signs(gain: Tensor) -> Tensor:
    return torch.where(gain < 0, -1.0, 1.0)


def _stored(kept: Tensor, rows: int, widths: Sequence[int]) -> list[np.ndarray | None]:
    """What the norms get, one after another: nothing for the first, whose rows are gathered again."""
    parts = kept.split([kept.numel() // sum(widths) * w for w in widths]) if widths else []
    return [None, *(part[: rows * w].view(rows, w).numpy() for part, w in zip(parts, widths, strict=True))]


def forward(
    table: Tensor,
    shift: Tensor,
    index: Tensor,
    found: Tensor,
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-> maxima before the last norm and their places (B, S, CL), kept values, means and variances of all norms."""
    with one_torch_thread() as threads:
        return _forward(_Groups(table, shift, index, found, weights, threads), weights, gain, bias, eps)


def _forward(
    groups: "_Groups", weights: list[Tensor], gain: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    widths = groups.widths
    gains, biases = gain.split(widths), bias.split(widths)
    signs = _signs(gains[-1])
    factors = [*weights[:-1], weights[-1] * signs[:, None]]
    kept = torch.empty(groups.count * sum(widths[1:-1]))
    stored = _stored(kept, groups.rows, widths[1:-1])
    top = torch.empty(len(groups.index), widths[-1])
    places = torch.empty(top.shape, dtype=torch.int32)
    tops = top.numpy(), places.numpy()

    seen = _Moments(groups, widths[0])

    def measure(part: int) -> None:
        for tile, _, values in groups.tiles(part, None):
            seen.add(tile, values)

    groups.each_part(measure)
    moments = [seen.result()]
    for layer, factor in enumerate(factors):
        norm, last = _Norm.of(*moments[-1], gains[layer], biases[layer], eps), layer == len(factors) - 1
        seen = _Moments(groups, widths[layer + 1])

        def apply(part: int, layer=layer, factor=factor, norm=norm, seen=seen, last=last) -> None:
            hidden = groups.buffer(widths[layer])
            for tile, rows, values in groups.tiles(part, stored[layer]):
                _activate(values, *norm[:3], hidden.numpy())
                made = product(hidden, factor).numpy()
                seen.add(tile, made, tops if last else ())
                if not last:
                    stored[layer + 1][rows] = made[: len(values)]

        groups.each_part(apply)
        moments.append(seen.result())
    mean, var = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*moments, strict=True))
    mean[-widths[-1] :] *= signs
    top *= signs
    return groups.of_clouds(top), groups.of_clouds(places), kept, mean, var


def known(
    table: Tensor,
    shift: Tensor,
    index: Tensor,
    found: Tensor,
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> Tensor:
    """With given statistics. -> maxima before the last norm (B, S, CL)"""
    with one_torch_thread() as threads:
        return _known(_Groups(table, shift, index, found, weights, threads), weights, gain, bias, mean, var, eps)


def _known(
    groups: "_Groups", weights: list[Tensor], gain: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    widths, norms = groups.widths, _norms(groups.widths, mean, var, gain, bias, eps)
    signs = _signs(gain.split(widths)[-1])
    factors = [*weights[:-1], weights[-1] * signs[:, None]]
    top = torch.empty(len(groups.index), widths[-1])
    tops = top.numpy(), np.empty(top.shape, dtype=np.int32)

    def apply(part: int) -> None:
        buffers = [groups.buffer(w) for w in widths[:-1]]
        for tile, rows, values in groups.tiles(part, None):
            for norm, hidden, factor in zip(norms, buffers, factors, strict=False):
                _activate(values[: rows.stop - rows.start], *norm[:3], hidden.numpy())
                values = product(hidden, factor).numpy()
            _maxima(*tile, groups.size, values, *tops, np.empty((2, widths[-1])))

    groups.each_part(apply)
    return groups.of_clouds(top * signs)


def backward(
    grad: Tensor,
    table: Tensor,
    shift: Tensor,
    index: Tensor,
    found: Tensor,
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    top: Tensor,
    places: Tensor,
    kept: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    """Gradient (B, S, CL) of the maxima after the last norm -> those of table, shift, weights, gain and bias."""
    with one_torch_thread() as threads:
        groups = _Groups(table, shift, index, found, weights, threads)
        norms = _norms(groups.widths, mean, var, gain, bias, eps)
        to_table, to_shift, *others = _backward(groups, grad, weights, norms, top, places, kept)
    return to_table.view_as(table), to_shift.view_as(shift), *others


def _backward(
    groups: "_Groups",
    grad: Tensor,
    weights: list[Tensor],
    norms: list["_Norm"],
    top: Tensor,
    places: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    widths = groups.widths
    stored = _stored(kept, groups.rows, widths[1:-1])

    grads = torch.empty(groups.rows, widths[-2])
    to_weight, to_gain, to_bias, sums = _last_layer(groups, grad, top, places, weights[-1], norms, stored[-1], grads)
    to_weights, to_gains, to_biases = [to_weight], [to_gain], [to_bias]
    for layer in reversed(range(len(weights))):
        to_gain, to_bias, offset, slope = norms[layer].backward(sums, groups.count)
        to_gains.insert(0, to_gain)
        to_biases.insert(0, to_bias)
        given = norms[layer].mean, norms[layer].scale, offset, slope
        if layer > 0:
            below = torch.empty(groups.rows, widths[layer - 1])
            to_weight, sums = _middle_layer(groups, grads, weights[layer - 1], given, stored, norms, layer, below)
            to_weights.insert(0, to_weight)
            grads = below
    to_table, to_shift = _first_layer(groups, grads, given)
    to_gain, to_bias = (torch.from_numpy(np.concatenate(x)) for x in (to_gains, to_biases))
    return to_table, to_shift, to_weights, to_gain, to_bias


def _last_layer(
    groups: _Groups,
    grad: Tensor,
    top: Tensor,
    places: Tensor,
    weight: Tensor,
    norms: list[_Norm],
    stored: np.ndarray | None,
    out: Tensor,
) -> tuple[Tensor, np.ndarray, np.ndarray, np.ndarray]:
    """Fills ``out`` with the gradient before the ReLU. -> gradients of weight, gain, bias; the next norm's sums."""
    norm, before = norms[-1], norms[-2]
    grad, top = grad.flatten(0, 1), top.flatten(0, 1)  # (M, CL)
    mean = torch.from_numpy(norm.mean)
    sums = torch.stack([grad.sum(0, dtype=torch.float64), (grad * (top - mean)).sum(0, dtype=torch.float64)]).numpy()
    to_gain, to_bias, offset, slope = norm.backward(sums, groups.count)
    sparse = (grad * torch.from_numpy(norm.scale)).numpy()
    given = sparse, places.flatten(0, 1).numpy()
    steep = torch.from_numpy(slope)[:, None] * weight  # (CL, C)
    factor = product(weight.T.contiguous(), steep.T)  # (C, C)
    level = torch.from_numpy(offset - slope * norm.mean)  # (CL,)
    shared = (level @ weight).numpy()  # (C,)
    width, parts = weight.shape[1], len(groups.parts)
    spread = np.zeros((parts, *weight.shape), dtype=np.float32)
    grams, totals, sums = torch.zeros(parts, width, width), np.zeros((parts, width)), np.zeros((parts, 2, width))

    def work(part: int) -> None:
        hidden, turned = groups.buffer(width), torch.empty(width, groups.height)
        for tile, rows, values in groups.tiles(part, stored):
            _activate(values, *before[:3], hidden.numpy())
            hidden[len(values) :] = 0
            grads = product(hidden, factor).numpy()
            _to_last_input(*tile, groups.size, *given, weight.numpy(), shared, grads)
            _clip(*tile, values, before.mean, hidden.numpy(), grads, out[rows].numpy(), sums[part])
            _to_last_weight(*tile, groups.size, *given, hidden.numpy(), spread[part], totals[part])
            _turn(hidden.numpy(), turned.numpy())
            grams[part] += product(turned, hidden.T)

    groups.each_part(work)
    gram, total = grams.sum(0), torch.from_numpy(totals.sum(0)).float()
    to_weight = torch.from_numpy(spread).sum(0) - product(steep, gram) - level[:, None] * total
    return to_weight, to_gain, to_bias, sums.sum(0)


def _middle_layer(
    groups: _Groups,
    grads: Tensor,
    weight: Tensor,
    given: tuple[np.ndarray, ...],
    stored: list[np.ndarray | None],
    norms: list[_Norm],
    layer: int,
    out: Tensor,
) -> tuple[Tensor, np.ndarray]:
    """Fills ``out`` with the gradient before the ReLU below. -> gradient of the weight; the next norm's sums."""
    before, width, parts = norms[layer - 1], weight.shape[1], len(groups.parts)
    to_weight, sums, downward = torch.zeros(parts, *weight.shape), np.zeros((parts, 2, width)), weight.T.contiguous()

    def work(part: int) -> None:
        hidden, above, turned = (
            groups.buffer(width),
            groups.buffer(len(weight)),
            torch.empty(len(weight), groups.height),
        )
        for tile, rows, values in groups.tiles(part, stored[layer - 1]):
            n = len(values)
            _activate(values, *before[:3], hidden.numpy())
            _through_norm(*tile, groups.size, stored[layer][rows], *given, grads[rows].numpy(), above.numpy())
            hidden[n:], above[n:] = 0, 0
            _turn(above.numpy(), turned.numpy())
            to_weight[part] += product(turned, hidden.T)
            below = product(above, downward).numpy()
            _clip(*tile, values, before.mean, hidden.numpy(), below, out[rows].numpy(), sums[part])

    groups.each_part(work)
    return to_weight.sum(0), sums.sum(0)


def _first_layer(groups: _Groups, grads: Tensor, given: tuple[np.ndarray, ...]) -> tuple[Tensor, Tensor]:
    """Gradients of the table (B * N, C1) and of the shifts (M, C1)."""
    to_table, to_shift = torch.zeros(groups.table.shape), torch.empty(groups.shift.shape)
    found: list[tuple[int, Tensor]] = [(0, to_table)] * len(groups.parts)

    def work(part: int) -> None:
        # Parts may meet in a cloud, so each has sums of its own for its clouds.
        clouds = [s // groups.per_cloud for s in (groups.parts[part][0][0], groups.parts[part][-1][1] - 1)]
        sums = torch.zeros((clouds[1] - clouds[0] + 1) * groups.points, grads.shape[1])
        for tile, rows, values in groups.tiles(part, None):
            above = grads[rows].numpy()
            _through_norm(*tile, groups.size, values, *given, above, values)
            _scatter(*tile, *groups.places, clouds[0], values, sums.numpy(), to_shift.numpy())
        found[part] = clouds[0] * groups.points, sums

    groups.each_part(work)
    for first, sums in found:
        to_table[first : first + len(sums)] += sums
    return to_table, to_shift
