"""Furniture and what belongs to a house, as patches of surface; y is up, and the floor is y = 0."""

import numpy as np

from pcdet.datasets.synthetic.surfaces import (
    Patch,
    box,
    cylinder,
    ellipsoid,
    lateral,
    moved,
    parallelogram,
    part,
    torus,
)


def _legs(width: float, depth: float, height: float, thickness: float) -> list[Patch]:
    """Four legs that stand on y = 0."""
    patches = []
    for x in (-1, 1):
        for z in (-1, 1):
            centre = (x * (width - thickness) / 2, height / 2, z * (depth - thickness) / 2)
            patches += box(centre, (thickness, height, thickness))
    return patches


def _table(rng: np.random.Generator) -> list[Patch]:
    width, depth, height, top = rng.uniform((1.0, 0.6, 0.5, 0.04), (1.8, 1.0, 0.9, 0.12))
    legs = _legs(width, depth, height, rng.uniform(0.05, 0.14))
    return part("legs", legs) + part("top", box((0, height + top / 2, 0), (width, top, depth)))


def _stool(rng: np.random.Generator) -> list[Patch]:
    radius, height, top = rng.uniform((0.25, 0.5, 0.04), (0.4, 0.9, 0.12))
    legs = _legs(1.5 * radius, 1.5 * radius, height, rng.uniform(0.04, 0.08))
    return legs + cylinder((0, height + top / 2, 0), radius, top)


def _chair(rng: np.random.Generator) -> list[Patch]:
    width, depth, height, back = rng.uniform((0.4, 0.4, 0.35, 0.3), (0.6, 0.6, 0.55, 0.7))
    thick = rng.uniform(0.03, 0.08)
    seat = box((0, height + thick / 2, 0), (width, thick, depth))
    rest = box((0, height + thick + back / 2, -(depth - thick) / 2), (width, back, thick))
    legs = _legs(width, depth, height, rng.uniform(0.03, 0.07))
    return part("legs", legs) + part("seat", seat) + part("back", rest)


def _sofa(rng: np.random.Generator) -> list[Patch]:
    width, depth, seat, back = rng.uniform((1.2, 0.6, 0.3, 0.25), (2.2, 0.9, 0.45, 0.5))
    arm = rng.uniform(0.1, 0.25)
    patches = box((0, seat / 2, 0), (width, seat, depth))
    patches += box((0, seat + back / 2, -depth / 2 + 0.1), (width, back, 0.2))
    for side in (-1, 1):
        patches += box((side * (width - arm) / 2, seat + back / 4, 0.05), (arm, back / 2, depth - 0.1))
    return patches


def _bed(rng: np.random.Generator) -> list[Patch]:
    width, length, height, head = rng.uniform((0.9, 1.8, 0.3, 0.3), (1.8, 2.2, 0.6, 0.8))
    patches = box((0, height / 2, 0), (width, height, length))
    patches += box((0, (height + head) / 2, -length / 2), (width, height + head, 0.08))
    pillows = 2 if width > 1.3 else 1
    for i in range(pillows):
        x = (i - (pillows - 1) / 2) * width / 2
        patches.append(ellipsoid((x, height + 0.06, -length / 2 + 0.3), (0.28, 0.1, 0.18)))
    return patches


def _shelf(rng: np.random.Generator) -> list[Patch]:
    width, height, depth = rng.uniform((0.6, 1.0, 0.25), (1.2, 2.0, 0.4))
    boards, thick = rng.integers(3, 6), 0.04
    patches = []
    for side in (-1, 1):
        patches += box((side * width / 2, height / 2, 0), (thick, height, depth))
    for y in np.linspace(thick, height - thick, boards):
        patches += box((0, y, 0), (width, thick, depth))
    return patches


def _lamp(rng: np.random.Generator) -> list[Patch]:
    height, foot, shade, low = rng.uniform((0.5, 0.15, 0.2, 0.2), (1.5, 0.25, 0.4, 0.35))
    patches = part("foot", cylinder((0, 0.02, 0), foot, 0.04)) + part(
        "pole", cylinder((0, height / 2, 0), 0.03, height)
    )
    return patches + part("shade", lateral((0, height + shade / 2 - 0.05, 0), low, low * rng.uniform(0.3, 0.8), shade))


def _bench(rng: np.random.Generator) -> list[Patch]:
    width, depth, height, thick = rng.uniform((1.2, 0.3, 0.35, 0.05), (2.2, 0.5, 0.55, 0.1))
    patches = box((0, height + thick / 2, 0), (width, thick, depth))
    for side in (-1, 1):
        patches += box((side * 0.4 * width, height / 2, 0), (thick, height, 0.9 * depth))
    return patches


def _desk(rng: np.random.Generator) -> list[Patch]:
    width, depth, height, top = rng.uniform((1.0, 0.5, 0.6, 0.03), (1.6, 0.8, 0.8, 0.06))
    drawers = width * rng.uniform(0.25, 0.35)
    patches = box((0, height + top / 2, 0), (width, top, depth))
    patches += box(((width - drawers) / 2, height / 2, 0), (drawers, height, 0.9 * depth))
    for z in (-1, 1):
        patches += box((-0.47 * width, height / 2, z * 0.45 * depth), (0.05, height, 0.05))
    return patches


def _dresser(rng: np.random.Generator) -> list[Patch]:
    width, depth, height, foot = rng.uniform((0.9, 0.4, 0.6, 0.06), (1.4, 0.55, 0.9, 0.12))
    patches = box((0, foot + height / 2, 0), (width, height, depth)) + _legs(width, depth, foot, 0.07)
    for y in np.linspace(0.2, 0.8, 3):
        for x in (-0.25, 0.25):
            patches.append(ellipsoid((x * width, foot + y * height, depth / 2 + 0.02), (0.05, 0.03, 0.03)))
    return patches


def _wardrobe(rng: np.random.Generator) -> list[Patch]:
    width, depth, height = rng.uniform((0.9, 0.5, 1.7), (1.3, 0.65, 2.2))
    patches = box((0, height / 2, 0), (width, height, depth))
    patches += box((0, height + 0.04, 0), (1.12 * width, 0.08, 1.15 * depth))
    for side in (-1, 1):
        patches += box((side * 0.05, 0.5 * height, depth / 2 + 0.02), (0.02, 0.2 * height, 0.04))
    return patches


def _mantel(rng: np.random.Generator) -> list[Patch]:
    width, height, depth, post = rng.uniform((1.2, 0.9, 0.2, 0.15), (1.8, 1.3, 0.35, 0.3))
    patches = box((0, height + 0.06, 0), (1.1 * width, 0.12, 1.2 * depth))
    patches += box((0, 0.85 * height, -0.1 * depth), (width, 0.3 * height, 0.8 * depth))
    for side in (-1, 1):
        patches += box((side * (width - post) / 2, height / 2, 0), (post, height, depth))
    return patches


def _door(rng: np.random.Generator) -> list[Patch]:
    width, height, thick = rng.uniform((0.7, 1.8, 0.03), (1.0, 2.2, 0.06))
    patches = box((0, height / 2, 0), (width, height, thick))
    for z in (-1, 1):
        patches.append(ellipsoid((0.4 * width, 0.47 * height, z * (thick / 2 + 0.05)), (0.05, 0.05, 0.05)))
    for side in (-1, 1):
        patches += box((side * (width / 2 + 0.05), height / 2, 0), (0.08, height, 3 * thick))
    return patches + box((0, height + 0.05, 0), (width + 0.18, 0.1, 3 * thick))


def _curtain(rng: np.random.Generator) -> list[Patch]:
    width, height, deep = rng.uniform((1.0, 1.5, 0.06), (1.8, 2.2, 0.16))
    folds = 2 * int(rng.integers(4, 8))
    x = np.linspace(-width / 2, width / 2, folds + 1)
    z = deep * (np.arange(folds + 1) % 2)
    return [parallelogram((x[i], 0, z[i]), (x[i + 1] - x[i], 0, z[i + 1] - z[i]), (0, height, 0)) for i in range(folds)]


def _bathtub(rng: np.random.Generator) -> list[Patch]:
    length, width, height, wall = rng.uniform((1.4, 0.65, 0.45, 0.06), (1.9, 0.85, 0.65, 0.12))
    patches = box((0, 0.05, 0), (length, 0.1, width))
    for side in (-1, 1):
        patches += box((side * (length - wall) / 2, height / 2, 0), (wall, height, width))
        patches += box((0, height / 2, side * (width - wall) / 2), (length, height, wall))
    return [*patches, *cylinder((0.42 * length, height + 0.08, 0), 0.03, 0.16)]


def _stairs(rng: np.random.Generator) -> list[Patch]:
    steps = int(rng.integers(4, 8))
    width, run, rise = rng.uniform((0.6, 0.2, 0.13), (1.1, 0.3, 0.22))
    patches = []
    for i in range(steps):
        patches += box((0, (i + 0.5) * rise, i * run), (width, rise, run))
    return patches


def _ladder(rng: np.random.Generator) -> list[Patch]:
    width, height, rail = rng.uniform((0.3, 1.5, 0.03), (0.5, 2.4, 0.06))
    patches = []
    for side in (-1, 1):
        patches += box((side * width / 2, height / 2, 0), (rail, height, rail))
    for y in np.linspace(0.1, 0.9, int(rng.integers(5, 9))):
        patches += box((0, y * height, 0), (width, 0.7 * rail, 0.7 * rail))
    return patches


def _fence(rng: np.random.Generator) -> list[Patch]:
    width, height = rng.uniform((1.5, 0.6), (2.4, 1.0))
    patches = []
    for x in np.linspace(-0.5, 0.5, int(rng.integers(6, 11))):
        patches += box((x * width, height / 2, 0), (0.07, height, 0.03))
    for y in (0.25, 0.75):
        patches += box((0, y * height, -0.03), (width, 0.07, 0.03))
    return patches


def _arch(rng: np.random.Generator) -> list[Patch]:
    radius, tube, height = rng.uniform((0.5, 0.08, 0.5), (0.8, 0.16, 1.2))
    upright = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])  # y -> -z, z -> y
    patches = [moved(torus((0, 0, 0), radius, tube, share=0.5), upright, (0, height, 0))]
    for side in (-1, 1):
        patches += cylinder((side * radius, height / 2, 0), tube, height)
    return patches


FURNITURE = {
    "arch": _arch,
    "bathtub": _bathtub,
    "bed": _bed,
    "bench": _bench,
    "chair": _chair,
    "curtain": _curtain,
    "desk": _desk,
    "door": _door,
    "dresser": _dresser,
    "fence": _fence,
    "ladder": _ladder,
    "lamp": _lamp,
    "mantel": _mantel,
    "shelf": _shelf,
    "sofa": _sofa,
    "stairs": _stairs,
    "stool": _stool,
    "table": _table,
    "wardrobe": _wardrobe,
}
