"""Uniform samples of simple surfaces, with outward normals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Patch(NamedTuple):
    """A surface of known area that can be sampled."""

    area: float
    sample: object  # (count, rng) -> points (count, 3), normals (count, 3)
    part: str = ""  # what it belongs to, where parts are told apart


def part(name: str, patches: Patch | Sequence[Patch]) -> list[Patch]:
    """The patches as those of a part."""
    return [patch._replace(part=name) for patch in ([patches] if isinstance(patches, Patch) else patches)]


def moved(patch: Patch, matrix: np.ndarray, offset: Sequence[float]) -> Patch:
    """The patch turned by ``matrix`` (3, 3), which multiplies column vectors, then shifted."""

    def sample(count, rng):
        points, normals = patch.sample(count, rng)
        return points @ matrix.T + np.asarray(offset), normals @ matrix.T

    return Patch(patch.area, sample, patch.part)


def parallelogram(origin, u, v) -> Patch:
    """The flat piece ``origin + a u + b v`` for a, b in [0, 1]; the normal is along u x v."""
    origin, u, v = (np.asarray(x, dtype=np.float64) for x in (origin, u, v))
    cross = np.cross(u, v)
    area = float(np.linalg.norm(cross))

    def sample(count, rng):
        a, b = rng.random((2, count, 1))
        return origin + a * u + b * v, np.tile(cross / area, (count, 1))

    return Patch(area, sample)


def box(centre, size) -> list[Patch]:
    """The six faces of an axis-parallel box."""
    centre, size = np.asarray(centre, dtype=np.float64), np.asarray(size, dtype=np.float64)
    faces = []
    for axis in range(3):
        u, v = np.zeros(3), np.zeros(3)
        u[(axis + 1) % 3], v[(axis + 2) % 3] = size[(axis + 1) % 3], size[(axis + 2) % 3]
        for sign in (1.0, -1.0):
            corner = centre - (u + v) / 2
            corner[axis] = centre[axis] + sign * size[axis] / 2
            faces.append(parallelogram(corner, u, v) if sign > 0 else parallelogram(corner, v, u))
    return faces


def lateral(centre, low: float, high: float, height: float) -> Patch:
    """The mantle of a frustum along y: radius ``low`` at the bottom and ``high`` at the top."""
    centre = np.asarray(centre, dtype=np.float64)
    slant = math.hypot(height, low - high)

    def sample(count, rng):
        # The radius r has a density in proportion to r: invert its distribution between the two ends.
        square = low**2 + rng.random(count) * (high**2 - low**2)
        radius = np.sqrt(square)
        share = (radius - low) / (high - low) if high != low else rng.random(count)
        angle = rng.uniform(0, 2 * math.pi, count)
        ring = np.stack([np.cos(angle), np.zeros(count), np.sin(angle)], axis=1)
        points = centre + ring * radius[:, None]
        points[:, 1] += (share - 0.5) * height
        normals = (ring * height + np.array([0.0, low - high, 0.0])) / slant
        return points, normals

    return Patch(math.pi * (low + high) * slant, sample)


def ring(centre, outer: float, inner: float, up: float) -> Patch:
    """A flat disc across y, with a hole of radius ``inner``; ``up`` is 1 or -1, the side it faces."""
    centre = np.asarray(centre, dtype=np.float64)

    def sample(count, rng):
        radius = np.sqrt(rng.uniform(inner**2, outer**2, count))
        angle = rng.uniform(0, 2 * math.pi, count)
        points = centre + np.stack([radius * np.cos(angle), np.zeros(count), radius * np.sin(angle)], axis=1)
        return points, np.tile([0.0, up, 0.0], (count, 1))

    return Patch(math.pi * (outer**2 - inner**2), sample)


def cylinder(centre, radius: float, height: float, top: float | None = None) -> list[Patch]:
    """A closed cylinder along y, or a frustum whose upper radius is ``top``."""
    top = radius if top is None else top
    centre = np.asarray(centre, dtype=np.float64)
    half = np.array([0.0, height / 2, 0.0])
    patches = [lateral(centre, radius, top, height), ring(centre - half, radius, 0.0, -1.0)]
    return [*patches, ring(centre + half, top, 0.0, 1.0)] if top > 0 else patches


def ellipsoid(centre, half) -> Patch:
    """An ellipsoid; samples are thinned so that they are uniform by area."""
    centre, half = np.asarray(centre, dtype=np.float64), np.asarray(half, dtype=np.float64)
    # Knud Thomsen's approximation, within 1.1 %.
    a, b, c = half**1.6075
    area = 4 * math.pi * ((a * b + a * c + b * c) / 3) ** (1 / 1.6075)

    def sample(count, rng):
        stretch = 1 / half.min()
        points = np.zeros((0, 3))
        while len(points) < count:
            unit = rng.normal(size=(4 * count + 16, 3))
            unit /= np.linalg.norm(unit, axis=1, keepdims=True)
            # An area element of the unit sphere grows in proportion to |unit / half|.
            points = np.concatenate(
                [points, unit[rng.random(len(unit)) * stretch < np.linalg.norm(unit / half, axis=1)]]
            )
        unit = points[:count]
        normals = unit / half
        return centre + unit * half, normals / np.linalg.norm(normals, axis=1, keepdims=True)

    return Patch(area, sample)


def torus(centre, radius: float, tube: float, share: float = 1.0) -> Patch:
    """A ring-shaped tube around y; ``share`` below 1 leaves an open arc."""
    centre = np.asarray(centre, dtype=np.float64)

    def sample(count, rng):
        around = np.zeros(0)
        while len(around) < count:  # the outer side has more area than the inner
            draw = rng.uniform(0, 2 * math.pi, 4 * count + 16)
            kept = rng.random(len(draw)) * (radius + tube) < radius + tube * np.cos(draw)
            around = np.concatenate([around, draw[kept]])
        around, along = around[:count], rng.uniform(0, 2 * math.pi * share, count)
        normals = np.stack([np.cos(around) * np.cos(along), np.sin(around), np.cos(around) * np.sin(along)], axis=1)
        middle = radius * np.stack([np.cos(along), np.zeros(count), np.sin(along)], axis=1)
        return centre + middle + tube * normals, normals

    return Patch(4 * math.pi**2 * radius * tube * share, sample)


def sample_surface(patches: list[Patch], count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, 6) points and normals, uniform by area over all patches, in random order."""
    return sample_parts(patches, count, rng)[0]


def sample_parts(patches: list[Patch], count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`sample_surface`, and the position of each point's patch (count,)."""
    areas = np.array([patch.area for patch in patches])
    counts = rng.multinomial(count, areas / areas.sum())
    rows = [np.concatenate(patch.sample(n, rng), axis=1) for patch, n in zip(patches, counts, strict=True) if n]
    order = rng.permutation(count)
    return np.concatenate(rows)[order], np.repeat(np.arange(len(patches)), counts)[order]
