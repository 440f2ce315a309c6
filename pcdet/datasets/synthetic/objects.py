"""Parametric road users and street furniture. Sizes are drawn around KITTI's means.

Shapes stay a few centimetres inside their label's box, as range noise widens what the scanner sees of them.
"""

from dataclasses import dataclass

import numpy as np

from pcdet.datasets.synthetic.materials import draw_reflectivity
from pcdet.datasets.synthetic.primitives import Shape

_INSET = 0.03  # metres between a shape and the faces of its box


@dataclass(frozen=True)
class Model:
    """One object to be placed. ``name`` is a KITTI class, or empty for things that carry no label."""

    name: str
    size: tuple[float, float, float]  # length, width, height of the box in metres
    shape: Shape


def _size(rng: np.random.Generator, mean, sigma) -> tuple[float, float, float]:
    """Length, width, height, rounded to the centimetre like KITTI's labels, within 2.5 sigma of the mean."""
    draw = np.clip(rng.normal(size=3), -2.5, 2.5)
    length, width, height = np.round(np.asarray(mean) + draw * np.asarray(sigma), 2)
    return float(length), float(width), float(height)


def _surface(name: str, rng: np.random.Generator) -> tuple[str, float]:
    return name, draw_reflectivity(name, rng)


def _wheels(shape: Shape, length: float, width: float, radius: float, rng: np.random.Generator) -> None:
    tyre = _surface("tyre", rng)
    for along in (0.31, -0.30):
        for side in (0.5, -0.5):
            centre = (along * length, side * (width - 0.2), radius)
            shape.box(centre, (1.7 * radius, 0.18, 2 * radius), tyre, taper=(0.2, 0.2, 0.0))


def _plates(shape: Shape, length: float, height: float, rng: np.random.Generator) -> None:
    for end in (0.5, -0.5):
        shape.box((end * (length - 0.05), 0, height), (0.04, 0.5, 0.12), _surface("retro", rng))


def car(rng: np.random.Generator) -> Model:
    """A saloon, estate or hatchback: body, glass cabin, roof, wheels and number plates."""
    size = _size(rng, (3.9, 1.63, 1.53), (0.38, 0.09, 0.10))
    length, width, height = (s - 2 * _INSET for s in size)
    paint = _surface("dark_paint" if rng.random() < 0.25 else "paint", rng)
    glass = _surface("glass", rng)
    waist, clearance = height * rng.uniform(0.56, 0.64), 0.2
    rear_lean = rng.choice([0.10, 0.25, 0.55])  # estate, hatchback, saloon
    cabin = length * rng.uniform(0.62, 0.70)
    shift = -length * (0.05 if rear_lean > 0.5 else 0.13)
    shape = Shape()
    shape.box(
        (0, 0, (waist + clearance) / 2),
        (length, width, waist - clearance),
        paint,
        taper=(rng.uniform(0.05, 0.14), 0.05, 0.05),
    )
    roof = 0.06
    shape.box(
        (shift, 0, (height - roof + waist) / 2),
        (cabin, width * 0.94, height - roof - waist),
        glass,
        taper=(rng.uniform(0.5, 0.7), rear_lean, 0.22),
    )
    roof_length = cabin * (1 - (0.6 + rear_lean) / 2)
    shape.box((shift + cabin * (rear_lean - 0.6) / 4, 0, height - roof / 2), (roof_length, width * 0.72, roof), paint)
    for along in (-0.12, 0.12):  # pillars split the glass
        shape.box((shift + along * length, 0, (height + waist) / 2 - roof), (0.09, width * 0.86, height - waist), paint)
    _wheels(shape, length, width, 0.31, rng)
    _plates(shape, length, 0.5, rng)
    return Model("Car", size, shape)


def van(rng: np.random.Generator) -> Model:
    """A delivery van: tall body, bonnet, windscreen, wheels and plates."""
    size = _size(rng, (5.0, 1.90, 2.2), (0.5, 0.12, 0.25))
    length, width, height = (s - 2 * _INSET for s in size)
    paint = _surface("dark_paint" if rng.random() < 0.15 else "paint", rng)
    bonnet = length * rng.uniform(0.12, 0.2)
    body = length - bonnet
    shape = Shape()
    shape.box((-bonnet / 2, 0, (height + 0.25) / 2), (body, width, height - 0.25), paint, taper=(0.16, 0.02, 0.08))
    shape.box((length / 2 - bonnet, 0, 0.65), (bonnet * 2, width * 0.96, 0.8), paint, taper=(0.3, 0, 0.05))
    front = length / 2 - bonnet - 0.1
    shape.box(
        (front, 0, height * 0.68), (0.34, width * 0.86, height * 0.34), _surface("glass", rng), taper=(0.8, 0, 0.1)
    )
    _wheels(shape, length, width, 0.34, rng)
    _plates(shape, length, 0.55, rng)
    return Model("Van", size, shape)


def pedestrian(rng: np.random.Generator) -> Model:
    """A walking or standing person: head, torso, two legs, two arms."""
    size = _size(rng, (0.84, 0.64, 1.75), (0.18, 0.10, 0.11))
    length, width, height = (s - 2 * _INSET for s in size)
    stride = rng.uniform(0.05, 0.36) * length  # from below the hip to either foot
    trousers, coat, skin = _surface("cloth", rng), _surface("cloth", rng), _surface("skin", rng)
    hip, shoulder = 0.48 * height, 0.83 * height
    shape = Shape()
    for side, way in ((0.09, 1), (-0.09, -1)):
        step = way * stride
        shape.cylinder((step / 2, side, hip / 2), 0.075, 0.97 * hip, trousers, pitch=-np.arctan2(step, hip))
    shape.ellipsoid((0, 0, (hip + shoulder) / 2), (0.15, 0.21, (shoulder - hip) / 2 + 0.06), coat)
    for side, way in ((0.5, -1), (-0.5, 1)):
        swing = way * 0.6 * stride
        arm = (swing / 2, side * (width - 0.1), 0.64 * height)
        shape.ellipsoid(arm, (0.055, 0.05, 0.19 * height), coat, pitch=-np.arctan2(swing, 0.36 * height))
    shape.ellipsoid((0.02, 0, height - 0.12), (0.1, 0.085, 0.12), skin)
    return Model("Pedestrian", size, shape)


def cyclist(rng: np.random.Generator) -> Model:
    """A bicycle with a leaning rider."""
    size = _size(rng, (1.76, 0.60, 1.73), (0.10, 0.07, 0.08))
    length, width, height = (s - 2 * _INSET for s in size)
    radius = 0.33
    metal, coat, trousers = _surface("metal", rng), _surface("cloth", rng), _surface("cloth", rng)
    axle = length / 2 - radius
    shape = Shape()
    for end in (axle, -axle):
        shape.disc((end, 0, radius), radius, 0.86, _surface("tyre", rng))
    shape.box((0, 0, 0.55), (2 * axle * 0.8, 0.05, 0.06), metal)
    shape.cylinder((axle * 0.78, 0, 0.68), 0.03, 0.7, metal, pitch=-0.25)
    shape.box((axle * 0.68, 0, 1.02), (0.05, width * 0.95, 0.04), metal)
    lean = rng.uniform(0.15, 0.5)
    hip = np.array([-0.28, 0, 0.92])
    torso = (height - 0.26 - hip[2]) / np.cos(lean) / 2
    middle = hip + torso * np.array([np.sin(lean), 0, np.cos(lean)])
    shape.ellipsoid(tuple(middle), (0.14, 0.20, torso + 0.04), coat, pitch=lean)
    top = hip + 2 * torso * np.array([np.sin(lean), 0, np.cos(lean)])
    shape.ellipsoid((top[0] + 0.04, 0, height - 0.13), (0.11, 0.09, 0.13), _surface("skin", rng))
    for side in (0.5, -0.5):
        shape.ellipsoid((0.5 * (top[0] + axle * 0.68), side * (width - 0.14), 1.18), (0.24, 0.05, 0.06), coat, 0.45)
        shape.ellipsoid((-0.06, side * 0.22, 0.60), (0.09, 0.07, 0.34), trousers, pitch=-0.35 * side)
    return Model("Cyclist", size, shape)


def pole(rng: np.random.Generator) -> Model:
    """A lamp post or a traffic sign."""
    shape = Shape()
    metal = _surface("metal", rng)
    if rng.random() < 0.6:
        height = rng.uniform(4.0, 8.0)
        shape.cylinder((0, 0, height / 2), rng.uniform(0.06, 0.12), height, metal)
    else:
        shape.cylinder((0, 0, 1.3), 0.04, 2.6, metal)
        shape.box((0.06, 0, 2.3), (0.03, 0.6, 0.6), _surface("retro", rng))
    return Model("", (0.3, 0.3, 3.0), shape)


def tree(rng: np.random.Generator) -> Model:
    """A trunk below a crown of leaves that begins above head height."""
    shape = Shape()
    trunk, radius = rng.uniform(2.4, 3.2), rng.uniform(1.2, 2.4)
    shape.cylinder((0, 0, trunk / 2 + 0.5), rng.uniform(0.1, 0.25), trunk + 1.0, _surface("foliage", rng))
    leaves = _surface("foliage", rng)
    crown = rng.uniform(1.2, 2.0)
    shape.foliage((0, 0, trunk + crown), (radius, radius * rng.uniform(0.8, 1.2), crown), leaves, 0.8)
    return Model("", (0.5, 0.5, 3.0), shape)


def bush(rng: np.random.Generator) -> Model:
    """One to three balls of leaves near the ground."""
    shape = Shape()
    leaves = _surface("foliage", rng)
    extent = rng.uniform(0.4, 1.1)
    for _ in range(rng.integers(1, 4)):
        x, y = rng.uniform(-0.5, 0.5, size=2) * extent
        height = rng.uniform(0.3, 0.9)
        shape.foliage((x, y, height * 0.8), (extent, extent * rng.uniform(0.6, 1.0), height), leaves, 2.5)
    return Model("", (2.6 * extent, 2.6 * extent, 1.5), shape)


def bin_or_box(rng: np.random.Generator) -> Model:
    """Clutter about as large as a person: bins, cabinets, stacked boxes."""
    length, width, height = rng.uniform((0.4, 0.4, 0.5), (1.2, 0.8, 1.5))
    shape = Shape()
    shape.box((0, 0, height / 2), (length, width, height), _surface("wall", rng), taper=(0.05, 0.05, 0.05))
    return Model("", (length, width, height), shape)


def wall(rng: np.random.Generator, length: float, height: float) -> Model:
    """A piece of wall, fence or facade along x."""
    shape = Shape()
    shape.box((0, 0, height / 2), (length, 0.25, height), _surface("wall", rng))
    if height > 3.0:  # windows of a facade
        for along in (-0.25, 0.25):
            shape.box((along * length, 0, 1.7), (length * 0.22, 0.32, 1.2), _surface("glass", rng))
    return Model("", (length, 0.35, height), shape)
