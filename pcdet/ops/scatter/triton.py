"""Pooling over groups of rows on a GPU: a program owns some groups, or in the backward pass some rows, and channels.

At Part-A2's sizes, 512 boxes with 300 points each, 128 channels: 154,000 memberships, of which each reads one row of
512 bytes: 79 MB forward, from a table of 33 MB that mostly stays in the L2 cache; written are 50,000 cells, 26 MB, and
for the maximum as much again for who it came from. One comparison or addition a number: memory decides, so each row is
read where it lies and never copied. For dynamic pillars, 120,000 points of 64 channels in 25,000 cells, it is 31 MB.

Backward, groups may share rows. Each row walks over the groups it belongs to and adds what they send it, in ascending
order: no atomics, so the sums are the same on every run, and those of the CPU to the bit. The list of a row's groups
comes from a stable sort of the memberships, 154,000 keys; that of rows by segment, for which S is known, as well.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.triton import block_of, launch

TILE = 512  # numbers that a program pools at once, four a thread


@triton.jit
def _divide(value, count):
    """Rounded to nearest, as on a CPU; Triton's ``/`` is so for float64 alone."""
    if value.dtype == tl.float64:
        return value / count.to(tl.float64)
    else:
        return tl.div_rn(value, count.to(tl.float32))


@triton.jit
def _tile(size, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Rows and channels of this program, and which exist. (ROWS,), (CHANNELS,), (ROWS,), (ROWS, CHANNELS)"""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    return row, channel, row < size, (row < size)[:, None] & (channel < channels)


@triton.jit(do_not_specialize=["groups"])
def _max_kernel(features, rows, start, pooled, source, groups, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    group, channel, exists, there = _tile(groups, channels, ROWS, CHANNELS)
    begin, end = tl.load(start + group, mask=exists, other=0), tl.load(start + group + 1, mask=exists, other=0)
    first = tl.load(rows + begin, mask=begin < end, other=-1).to(tl.int32)  # where all are -inf
    best = tl.full((ROWS, CHANNELS), -float("inf"), features.dtype.element_ty)
    who = tl.zeros((ROWS, CHANNELS), tl.int32) + first[:, None]
    for k in range(tl.max(end - begin, axis=0)):
        held = begin + k < end
        row = tl.load(rows + begin + k, mask=held, other=0)
        value = tl.load(features + row[:, None] * channels + channel, mask=held[:, None] & there, other=-float("inf"))
        better = (value > best) | ((value != value) & (best == best))  # of equal ones the first; a NaN stays
        best, who = tl.where(better, value, best), tl.where(better, row.to(tl.int32)[:, None], who)
    place = group.to(tl.int64)[:, None] * channels + channel
    tl.store(pooled + place, tl.where((begin < end)[:, None], best, 0.0), mask=there)
    tl.store(source + place, who, mask=there)


@triton.jit(do_not_specialize=["groups"])
def _mean_kernel(features, rows, start, pooled, groups, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    group, channel, exists, there = _tile(groups, channels, ROWS, CHANNELS)
    begin, end = tl.load(start + group, mask=exists, other=0), tl.load(start + group + 1, mask=exists, other=0)
    total = tl.zeros((ROWS, CHANNELS), features.dtype.element_ty)
    for k in range(tl.max(end - begin, axis=0)):
        held = begin + k < end
        row = tl.load(rows + begin + k, mask=held, other=0)
        total += tl.load(features + row[:, None] * channels + channel, mask=held[:, None] & there, other=0.0)
    place = group.to(tl.int64)[:, None] * channels + channel
    tl.store(pooled + place, _divide(total, tl.maximum(end - begin, 1)[:, None]), mask=there)


@triton.jit(do_not_specialize=["num_rows"])
def _max_to_rows_kernel(
    grad, source, groups, start, out, num_rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    row, channel, exists, there = _tile(num_rows, channels, ROWS, CHANNELS)
    begin, end = tl.load(start + row, mask=exists, other=0), tl.load(start + row + 1, mask=exists, other=0)
    total = tl.zeros((ROWS, CHANNELS), grad.dtype.element_ty)
    before = tl.full((ROWS,), -1, tl.int64)
    for k in range(tl.max(end - begin, axis=0)):
        held = begin + k < end
        group = tl.load(groups + begin + k, mask=held, other=0)
        held &= group != before  # a group that holds the row twice sends its gradient once
        place = group[:, None] * channels + channel
        mine = tl.load(source + place, mask=held[:, None] & there, other=-1) == row[:, None]
        total += tl.load(grad + place, mask=mine, other=0.0)
        before = group
    tl.store(out + row.to(tl.int64)[:, None] * channels + channel, total, mask=there)


@triton.jit(do_not_specialize=["num_rows"])
def _mean_to_rows_kernel(
    grad, sizes, groups, start, out, num_rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    row, channel, exists, there = _tile(num_rows, channels, ROWS, CHANNELS)
    begin, end = tl.load(start + row, mask=exists, other=0), tl.load(start + row + 1, mask=exists, other=0)
    total = tl.zeros((ROWS, CHANNELS), grad.dtype.element_ty)
    for k in range(tl.max(end - begin, axis=0)):
        held = begin + k < end
        group = tl.load(groups + begin + k, mask=held, other=0)
        size = tl.load(sizes + group, mask=held, other=1)
        sent = tl.load(grad + group[:, None] * channels + channel, mask=held[:, None] & there, other=0.0)
        total += _divide(sent, size[:, None])
    tl.store(out + row.to(tl.int64)[:, None] * channels + channel, total, mask=there)


def _run(kernel: triton.JITFunction, size: int, channels: int, *arguments: Tensor) -> None:
    width = block_of(channels, 16, 128)
    block = {"ROWS": TILE // width, "CHANNELS": width}
    grid = (triton.cdiv(size, block["ROWS"]), triton.cdiv(channels, width))
    launch(kernel, grid, *arguments, size, channels, **block)


def rows_by_segment(segment: Tensor, num_segments: int) -> tuple[Tensor, Tensor]:
    """(N,) -> row numbers (N,), starts (S + 1,)."""
    ordered, rows = torch.sort(segment, stable=True)
    return rows, torch.searchsorted(ordered, torch.arange(num_segments + 1, device=segment.device))


def _groups_of_rows(rows: Tensor, start: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """The groups of each row in ascending order, (K,), and where those of each row begin, (N + 1,)."""
    places, begins = rows_by_segment(rows, num_rows)
    return torch.searchsorted(start, places, right=True) - 1, begins


def pool_max(features: Tensor, rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """(N, C) -> the largest (S, C), and the first row that holds it (S, C), -1 in an empty group."""
    pooled = features.new_empty(len(start) - 1, features.shape[1])
    source = torch.empty_like(pooled, dtype=torch.int32)
    tensors = (features.contiguous(), rows.contiguous(), start.contiguous(), pooled, source)
    _run(_max_kernel, *pooled.shape, *tensors)
    return pooled, source


def pool_max_backward(grad: Tensor, source: Tensor, rows: Tensor, start: Tensor, num_rows: int) -> Tensor:
    """(S, C) -> (N, C)."""
    out = grad.new_empty(num_rows, grad.shape[1])
    _run(_max_to_rows_kernel, *out.shape, grad.contiguous(), source, *_groups_of_rows(rows, start, num_rows), out)
    return out


def pool_mean(features: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    """(N, C) -> (S, C)."""
    pooled = features.new_empty(len(start) - 1, features.shape[1])
    _run(_mean_kernel, *pooled.shape, features.contiguous(), rows.contiguous(), start.contiguous(), pooled)
    return pooled


def pool_mean_backward(grad: Tensor, rows: Tensor, start: Tensor, num_rows: int) -> Tensor:
    """(S, C) -> (N, C)."""
    out = grad.new_empty(num_rows, grad.shape[1])
    groups, begins = _groups_of_rows(rows, start, num_rows)
    _run(_mean_to_rows_kernel, *out.shape, grad.contiguous(), start.diff(), groups, begins, out)
    return out
