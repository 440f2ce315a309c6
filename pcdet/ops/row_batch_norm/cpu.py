"""Batch norm of rows as CPU kernels: each direction reads the rows twice and writes one result.

Sums are float32 within a block of rows and float64 beyond it.
"""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel
from pcdet.ops.threads import parallel_for

PIECE = 8192  # rows whose sums are kept apart, whatever the number of threads
BLOCK = 64  # rows that are added up in float32


@Kernel
def _moments(first, last, rows, repeats, block, sums, squares):
    """Sums of ``x - x0`` and of its square, x0 being row 0, over the rows of each piece."""
    count, width = rows.shape[0], rows.shape[1]
    piece = -(-count // sums.shape[0])
    total, total2 = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for p in range(first, last):
        sums[p], squares[p] = 0.0, 0.0
        for start in range(p * piece, min((p + 1) * piece, count), block):
            total[:], total2[:] = 0.0, 0.0
            for r in range(start, min(start + block, (p + 1) * piece, count)):
                n = repeats[r]
                for c in range(width):
                    x = rows[r, c] - rows[0, c]
                    total[c] += n * x
                    total2[c] += n * x * x
            for c in range(width):
                sums[p, c] += total[c]
                squares[p, c] += total2[c]


@Kernel
def _apply(first, last, rows, scale, mean, bias, floor, out):
    for r in range(first, last):
        for c in range(rows.shape[1]):
            out[r, c] = max((rows[r, c] - mean[c]) * scale[c] + bias[c], floor)


@Kernel
def _gradient_sums(first, last, grad, rows, repeats, scale, mean, bias, floor, block, sums, products):
    """Sums of the gradient that passes the ReLU, and of its product with ``x - mean``."""
    count, width = rows.shape[0], rows.shape[1]
    piece = -(-count // sums.shape[0])
    total, total2 = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for p in range(first, last):
        sums[p], products[p] = 0.0, 0.0
        for start in range(p * piece, min((p + 1) * piece, count), block):
            total[:], total2[:] = 0.0, 0.0
            for r in range(start, min(start + block, (p + 1) * piece, count)):
                for c in range(width):
                    x = rows[r, c] - mean[c]
                    g = grad[r, c] if x * scale[c] + bias[c] > floor else np.float32(0.0)
                    total[c] += g
                    total2[c] += g * x
            for c in range(width):
                sums[p, c] += total[c]
                products[p, c] += total2[c]


@Kernel
def _apply_gradient(first, last, grad, rows, repeats, scale, mean, bias, floor, offset, slope, out):
    for r in range(first, last):
        n = repeats[r]
        for c in range(rows.shape[1]):
            x = rows[r, c] - mean[c]
            g = grad[r, c] if x * scale[c] + bias[c] > floor else np.float32(0.0)
            out[r, c] = scale[c] * g - n * (offset[c] + x * slope[c])


def _column_sums(kernel: Kernel, rows: np.ndarray, *args) -> tuple[np.ndarray, np.ndarray]:
    """The two float64 sums (C,) that a kernel makes of all rows."""
    pieces = -(-len(rows) // PIECE)
    sums, others = np.empty((2, pieces, rows.shape[1]))
    parallel_for(kernel, pieces, *args, BLOCK, sums, others)
    return sums.sum(axis=0), others.sum(axis=0)


def _floor(relu: bool) -> np.float32:
    return np.float32(0.0 if relu else -np.inf)


def _scale(weight: np.ndarray, var: np.ndarray, eps: float) -> np.ndarray:
    return (weight / np.sqrt(var.astype(np.float64) + eps)).astype(np.float32)


def normalize(
    rows: Tensor, repeats: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(R, C) -> (R, C), mean (C,), variance (C,)."""
    table, out = rows.numpy(), np.empty(rows.shape, dtype=np.float32)
    sums, squares = _column_sums(_moments, table, table, repeats.numpy())
    count = float(repeats.numpy().sum(dtype=np.float64))
    shift = sums / count
    mean = (table[0] + shift).astype(np.float32)
    var = np.maximum(squares / count - shift * shift, 0.0).astype(np.float32)
    scale = _scale(weight.numpy(), var, eps)
    parallel_for(_apply, len(table), table, scale, mean, bias.numpy(), _floor(relu), out, chunk=PIECE)
    return torch.from_numpy(out), torch.from_numpy(mean), torch.from_numpy(var)


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
    """Gradient (R, C) of the result -> those of rows (R, C), weight (C,) and bias (C,)."""
    table, out = rows.numpy(), np.empty(rows.shape, dtype=np.float32)
    scale = _scale(weight.numpy(), var.numpy(), eps)
    count = float(repeats.numpy().sum(dtype=np.float64))
    shared = (grad.numpy(), table, repeats.numpy(), scale, mean.numpy(), bias.numpy(), _floor(relu))
    sums, products = _column_sums(_gradient_sums, table, *shared)
    variance = var.numpy().astype(np.float64) + eps
    offset = (scale * sums / count).astype(np.float32)
    slope = (scale * products / variance / count).astype(np.float32)
    parallel_for(_apply_gradient, len(table), *shared, offset, slope, out, chunk=PIECE)
    to_weight = (products / np.sqrt(variance)).astype(np.float32)
    return torch.from_numpy(out), torch.from_numpy(to_weight), torch.from_numpy(sums.astype(np.float32))
