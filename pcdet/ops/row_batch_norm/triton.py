"""Batch norm of rows as Triton kernels.

PV-RCNN's RoI grid: some 500,000 rows (the distinct neighbours) of C = 64 floats, 128 MB. Forward must read them for the
statistics and again for the result, which it writes: 384 MB, 0.2 ms for a card of 2 TB/s; backward reads rows and
gradients twice and writes one: 640 MB. A few operations a number do not count. In plain torch each step of the formula
is a pass of its own, some ten forward and as many backward.

Every piece of rows gives its sum of weights, its mean and its sum of squares about that mean, from a second pass over
rows that are in the cache by then and that also tells how far rounding has moved the mean; the pieces are combined as
Chan, Golub and LeVeque (1983) do. So the statistics lose no digits, and the same order gives the same result on every
run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.triton import block_of, launch

PIECE = 512  # rows of a program


def normalize(
    rows: Tensor, repeats: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(R, C) -> (R, C), mean (C,), variance (C,)."""
    pieces, across, block = _tiles(rows)
    # Triton 3.9's compiler crashes for sm_70 and sm_90 on a combining kernel whose width is no multiple of 16.
    width = triton.cdiv(rows.shape[1], 16) * 16
    partial = rows.new_zeros(3, pieces, width)
    moments = rows.new_empty(2, width)
    tile = {"BLOCK_R": 2048 // block, "BLOCK_C": block}
    launch(moments_kernel, (pieces, across), rows, repeats, partial, *rows.shape, width, pieces, PIECE=PIECE, **tile)
    launch(combine_kernel, (across,), partial, *moments, width, pieces, **tile)
    mean, var = (moment[: rows.shape[1]].clone() for moment in moments)
    scale = weight * (var + eps).rsqrt()
    out = torch.empty_like(rows)
    grid = triton.cdiv(len(rows), tile["BLOCK_R"]), across
    launch(apply_kernel, grid, rows, mean, scale, bias, out, *rows.shape, RELU=relu, **tile)
    return out, mean, var


def normalize_backward(
    grad: Tensor,
    rows: Tensor,
    repeats: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient (R, C) of the result -> those of rows (R, C), weight (C,) and bias (C,).

    The gradient of a row's result is the sum over all rows that it stands for.
    """
    inverse = (var + eps).rsqrt()
    scale = weight * inverse
    pieces, across, block = _tiles(rows)
    tile = {"BLOCK_R": 2048 // block, "BLOCK_C": block}
    partial = rows.new_empty(2, pieces, rows.shape[1])
    given = (grad, rows, mean, inverse, scale, bias)
    launch(sums_kernel, (pieces, across), *given, partial, *rows.shape, pieces, RELU=relu, PIECE=PIECE, **tile)
    to_bias, to_weight = partial[0].sum(dim=0), partial[1].sum(dim=0)
    share = repeats / repeats.sum()  # (R,)
    to_rows = torch.empty_like(rows)
    launch(
        gradient_kernel,
        (triton.cdiv(len(rows), tile["BLOCK_R"]), across),
        *(*given, share, to_bias, to_weight, to_rows, *rows.shape),
        RELU=relu,
        **tile,
    )
    return to_rows, to_weight, to_bias


def _tiles(rows: Tensor) -> tuple[int, int, int]:
    """Pieces of rows, blocks of columns, columns of a block."""
    block = block_of(rows.shape[1], 16, 64)
    return triton.cdiv(len(rows), PIECE), triton.cdiv(rows.shape[1], block), block


@triton.jit
def _over(total, weight):
    return tl.div_rn(total, tl.where(weight > 0, weight, 1.0))


@triton.jit
def _corrected(mean, drift, squares, weight):
    """Mean and sum of squares about it, from sums about a mean that rounding has moved."""
    return mean + _over(drift, weight), squares - _over(drift * drift, weight)


@triton.jit(do_not_specialize=["num_rows", "pieces"])
def moments_kernel(
    rows,  # (R, C)
    repeats,  # (R,)
    partial,  # (3, pieces, W), written: weight, mean, weighted squares about it
    num_rows,
    channels,
    width,  # W, at least C
    pieces,
    PIECE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    piece = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    r = piece * PIECE + tl.arange(0, BLOCK_R)
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    weights = tl.zeros([BLOCK_R], tl.float32)
    for at in range(0, PIECE, BLOCK_R):
        row = r + at
        weight = tl.load(repeats + row, mask=row < num_rows, other=0.0)
        held = (row < num_rows)[:, None] & (c < channels)[None, :]
        value = tl.load(rows + (row.to(tl.int64) * channels)[:, None] + c[None, :], mask=held, other=0.0)
        total += weight[:, None] * value
        weights += weight
    weight_of_all = tl.zeros([BLOCK_C], tl.float32) + tl.sum(weights, 0)
    mean = _over(tl.sum(total, 0), weight_of_all)
    squares = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    drift = squares
    for at in range(0, PIECE, BLOCK_R):
        row = r + at
        weight = tl.load(repeats + row, mask=row < num_rows, other=0.0)
        held = (row < num_rows)[:, None] & (c < channels)[None, :]
        value = tl.load(rows + (row.to(tl.int64) * channels)[:, None] + c[None, :], mask=held, other=0.0)
        away = tl.where(held, value - mean[None, :], 0.0)
        squares += weight[:, None] * away * away
        drift += weight[:, None] * away
    mean, spread = _corrected(mean, tl.sum(drift, 0), tl.sum(squares, 0), weight_of_all)
    out = partial + piece * width + c
    tl.store(out, weight_of_all, mask=c < channels)
    tl.store(out + pieces * width, mean, mask=c < channels)
    tl.store(out + 2 * pieces * width, spread, mask=c < channels)


@triton.jit(do_not_specialize=["pieces"])
def combine_kernel(
    partial,  # (3, pieces, W)
    mean_of,  # (W,), written
    var_of,  # (W,), written
    channels,  # W
    pieces,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    weights = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    total = weights
    for low in range(0, pieces, BLOCK_R):
        p = low + tl.arange(0, BLOCK_R)
        held = (p < pieces)[:, None] & (c < channels)[None, :]
        place = partial + p[:, None] * channels + c[None, :]
        weight = tl.load(place, mask=held, other=0.0)
        weights += weight
        total += weight * tl.load(place + pieces * channels, mask=held, other=0.0)
    weight_of_all = tl.sum(weights, 0)
    mean = _over(tl.sum(total, 0), weight_of_all)
    squares = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    drift = squares
    for low in range(0, pieces, BLOCK_R):
        p = low + tl.arange(0, BLOCK_R)
        held = (p < pieces)[:, None] & (c < channels)[None, :]
        place = partial + p[:, None] * channels + c[None, :]
        away = tl.load(place + pieces * channels, mask=held, other=0.0) - mean[None, :]
        squares += tl.load(place + 2 * pieces * channels, mask=held, other=0.0)
        weight = tl.load(place, mask=held, other=0.0)
        squares += weight * away * away
        drift += weight * away
    mean, spread = _corrected(mean, tl.sum(drift, 0), tl.sum(squares, 0), weight_of_all)
    tl.store(mean_of + c, mean, mask=c < channels)
    tl.store(var_of + c, _over(spread, weight_of_all), mask=c < channels)


@triton.jit(do_not_specialize=["num_rows"])
def apply_kernel(
    rows,  # (R, C)
    mean,  # (C,)
    scale,  # (C,)
    bias,  # (C,)
    out,  # (R, C), written
    num_rows,
    channels,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    held = (r < num_rows)[:, None] & (c < channels)[None, :]
    place = (r.to(tl.int64) * channels)[:, None] + c[None, :]
    away = tl.load(rows + place, mask=held, other=0.0) - tl.load(mean + c, mask=c < channels, other=0.0)[None, :]
    value = away * tl.load(scale + c, mask=c < channels, other=0.0)[None, :]
    value += tl.load(bias + c, mask=c < channels, other=0.0)[None, :]
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # a NaN stays one
    tl.store(out + place, value, mask=held)


@triton.jit
def _through_relu(grad, away, scale, bias, RELU: tl.constexpr):
    """The gradient before the ReLU, by the same operations as forward."""
    if RELU:
        grad = tl.where(away * scale[None, :] + bias[None, :] > 0, grad, 0.0)
    return grad


@triton.jit(do_not_specialize=["num_rows", "pieces"])
def sums_kernel(
    grad,  # (R, C)
    rows,  # (R, C)
    mean_of,  # (C,)
    inverse_of,  # (C,)
    scale_of,  # (C,)
    bias_of,  # (C,)
    partial,  # (2, pieces, C), written: of the gradients of bias and weight
    num_rows,
    channels,
    pieces,
    RELU: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    piece = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_column = c < channels
    mean = tl.load(mean_of + c, mask=is_column, other=0.0)
    inverse = tl.load(inverse_of + c, mask=is_column, other=0.0)
    scale = tl.load(scale_of + c, mask=is_column, other=0.0)
    bias = tl.load(bias_of + c, mask=is_column, other=0.0)
    to_bias = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    to_weight = to_bias
    for at in range(0, PIECE, BLOCK_R):
        r = piece * PIECE + at + tl.arange(0, BLOCK_R)
        held = (r < num_rows)[:, None] & is_column[None, :]
        place = (r.to(tl.int64) * channels)[:, None] + c[None, :]
        away = tl.load(rows + place, mask=held, other=0.0) - mean[None, :]
        value = _through_relu(tl.load(grad + place, mask=held, other=0.0), away, scale, bias, RELU)
        to_bias += value
        to_weight += value * (away * inverse[None, :])
    out = partial + piece * channels + c
    tl.store(out, tl.sum(to_bias, 0), mask=is_column)
    tl.store(out + pieces * channels, tl.sum(to_weight, 0), mask=is_column)


@triton.jit(do_not_specialize=["num_rows"])
def gradient_kernel(
    grad,  # (R, C)
    rows,  # (R, C)
    mean_of,  # (C,)
    inverse_of,  # (C,)
    scale_of,  # (C,)
    bias_of,  # (C,)
    share_of,  # (R,)
    to_bias_of,  # (C,)
    to_weight_of,  # (C,)
    to_rows,  # (R, C), written
    num_rows,
    channels,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_column = c < channels
    scale = tl.load(scale_of + c, mask=is_column, other=0.0)
    bias = tl.load(bias_of + c, mask=is_column, other=0.0)
    held = (r < num_rows)[:, None] & is_column[None, :]
    place = (r.to(tl.int64) * channels)[:, None] + c[None, :]
    away = tl.load(rows + place, mask=held, other=0.0) - tl.load(mean_of + c, mask=is_column, other=0.0)[None, :]
    value = _through_relu(tl.load(grad + place, mask=held, other=0.0), away, scale, bias, RELU)
    unit = away * tl.load(inverse_of + c, mask=is_column, other=0.0)[None, :]
    common = tl.load(to_bias_of + c, mask=is_column, other=0.0)[None, :]
    common += unit * tl.load(to_weight_of + c, mask=is_column, other=0.0)[None, :]
    value -= tl.load(share_of + r, mask=r < num_rows, other=0.0)[:, None] * common
    tl.store(to_rows + place, scale[None, :] * value, mask=held)
