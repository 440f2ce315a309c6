"""Loops over the points of one item, compiled: numba is imported with this module, so import it where it is called."""

import numpy as np

from pcdet.ops.compile import Kernel, device_function

# Kinds of steps in a table of steps (K, 4) float64; what follows the kind is given in brackets.
MIRROR_Y = 0.0  # y -> -y
MIRROR_X = 1.0  # x -> -x
TURN = 2.0  # [cos, sin] about z
SCALE = 3.0  # [factor]
SHIFT = 4.0  # [x, y, z]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment and the mixing constants of splitmix64 (Steele et al. 2014)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@Kernel
def move_points(points, steps):
    """(N, 3+) float32 points after all steps, one after the other.

    Each step is computed as NumPy would on the whole array and rounded to float32: turns and shifts in float64, factors
    in float32. So one pass gives what a pass a step gives, to the bit.
    """
    out = points.copy()
    for n in range(points.shape[0]):
        x, y, z = points[n, 0], points[n, 1], points[n, 2]
        for k in range(steps.shape[0]):
            kind, a, b, c = steps[k, 0], steps[k, 1], steps[k, 2], steps[k, 3]
            if kind == MIRROR_Y:
                y = -y
            elif kind == MIRROR_X:
                x = -x
            elif kind == TURN:
                x, y = np.float32(x * a - y * b), np.float32(x * b + y * a)
            elif kind == SCALE:
                factor = np.float32(a)
                x, y, z = x * factor, y * factor, z * factor
            else:
                x, y, z = np.float32(x + a), np.float32(y + b), np.float32(z + c)
        out[n, 0], out[n, 1], out[n, 2] = x, y, z
    return out


@device_function
def _below(state, limit):
    """A random integer below ``limit`` (at most 2**32) from the state of splitmix64.

    Some come up more often than others, by a part of limit / 2**32: a millionth for the clouds here.
    """
    mixed = (state ^ (state >> np.uint64(30))) * MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * MIX_2
    mixed = mixed ^ (mixed >> np.uint64(31))
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32))


@Kernel
def draw_order(total, count, seed):
    """(count,) int64: numbers below ``total``, each at most once, in random order (Fisher and Yates).

    ``seed`` is a uint64; equal seeds draw equally.
    """
    numbers = np.arange(total)
    state = np.uint64(seed)
    for i in range(count):
        state += GOLDEN
        j = i + _below(state, total - i)
        numbers[i], numbers[j] = numbers[j], numbers[i]
    return numbers[:count]
