"""Vessels, tools, vehicles and other things, as patches of surface; y is up."""

import numpy as np
from scipy.spatial.transform import Rotation

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

_SIDEWAYS = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]])  # y -> x: what lay along y lies along x
_FORWARD = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # y -> z


def _bottle(rng: np.random.Generator) -> list[Patch]:
    radius, body, neck, shoulder = rng.uniform((0.2, 0.5, 0.2, 0.1), (0.35, 1.0, 0.5, 0.25))
    narrow = radius * rng.uniform(0.2, 0.4)
    patches = cylinder((0, body / 2, 0), radius, body)[:2]
    patches.append(lateral((0, body + shoulder / 2, 0), radius, narrow, shoulder))
    return part("body", patches) + part("neck", cylinder((0, body + shoulder + neck / 2, 0), narrow, neck))


def _vase(rng: np.random.Generator) -> list[Patch]:
    foot, belly, mouth = rng.uniform((0.12, 0.28, 0.12), (0.22, 0.45, 0.30))
    lower, upper = rng.uniform((0.3, 0.3), (0.6, 0.7))
    patches = cylinder((0, lower / 2, 0), foot, lower, belly)[:2]
    return [*patches, lateral((0, lower + upper / 2, 0), belly, mouth, upper)]


def _cup(rng: np.random.Generator) -> list[Patch]:
    radius, height = rng.uniform((0.3, 0.5), (0.45, 0.9))
    patches = cylinder((0, height / 2, 0), radius * rng.uniform(0.7, 1.0), height, radius)[:2]
    upright = torus((0, 0, 0), height * rng.uniform(0.22, 0.32), 0.05, share=0.5)
    quarter = Rotation.from_euler("x", np.pi / 2).as_matrix()
    turn = quarter @ Rotation.from_euler("y", np.pi / 2).as_matrix()
    return part("body", patches) + part("handle", moved(upright, turn, (radius, height / 2, 0)))


def _cone(rng: np.random.Generator) -> list[Patch]:
    radius, height = rng.uniform((0.35, 0.7), (0.6, 1.4))
    patches = cylinder((0, height / 2, 0), radius, height, radius * rng.uniform(0.0, 0.12))
    base = radius * rng.uniform(2.1, 2.6)
    return patches + box((0, -0.03, 0), (base, 0.06, base))


def _monitor(rng: np.random.Generator) -> list[Patch]:
    width, height, stand = rng.uniform((0.7, 0.4, 0.15), (1.2, 0.7, 0.35))
    patches = box((0, stand + height / 2, 0), (width, height, 0.06))
    patches += box((0, stand / 2, -0.05), (0.1, stand, 0.05))
    return patches + box((0, 0.015, 0), (0.45 * width, 0.03, 0.25))


def _tent(rng: np.random.Generator) -> list[Patch]:
    width, height, length = rng.uniform((0.8, 0.6, 1.0), (1.4, 1.2, 2.0))
    half, z = width / 2, length / 2
    return [
        parallelogram((-half, 0, -z), (0, 0, length), (half, height, 0)),
        parallelogram((half, 0, z), (0, 0, -length), (-half, height, 0)),
        parallelogram((-half, 0, -z), (width, 0, 0), (0, 0, length)),
    ]


def _plane(rng: np.random.Generator) -> list[Patch]:
    length, span, body = rng.uniform((1.2, 1.0, 0.08), (2.0, 2.2, 0.16))
    chord = rng.uniform(0.18, 0.4)
    patches = part("body", ellipsoid((0, 0, 0), (body, body, length / 2)))
    patches += part("wings", box((0, 0, 0.05 * length), (span, 0.03, chord)))
    tail = box((0, 0.02, -0.45 * length), (0.4 * span, 0.02, 0.5 * chord))
    return patches + part("tail", tail + box((0, 0.12, -0.45 * length), (0.02, 0.26, 0.5 * chord)))


def _turned(patches: list[Patch], matrix: np.ndarray, offset: tuple[float, float, float]) -> list[Patch]:
    return [moved(patch, matrix, offset) for patch in patches]


def _bowl(rng: np.random.Generator) -> list[Patch]:
    radius, height = rng.uniform((0.4, 0.25), (0.6, 0.45))
    heights = height * np.array([0.0, 0.15, 0.45, 1.0])
    radii = radius * np.array([0.35, 0.6, 0.85, 1.0])
    patches = cylinder((0, -0.03, 0), 0.35 * radius, 0.06)
    for low, high, r, wider in zip(heights[:-1], heights[1:], radii[:-1], radii[1:], strict=True):
        patches.append(lateral((0, (low + high) / 2, 0), r, wider, high - low))
    return patches


def _hourglass(rng: np.random.Generator) -> list[Patch]:
    radius, height = rng.uniform((0.25, 0.35), (0.4, 0.6))
    patches = [lateral((0, -height / 2, 0), radius, 0.04, height), lateral((0, height / 2, 0), 0.04, radius, height)]
    for side in (-1, 1):
        patches += cylinder((0, side * (height + 0.03), 0), 1.2 * radius, 0.06)
    return patches


def _guitar(rng: np.random.Generator) -> list[Patch]:
    lower, length, thick = rng.uniform((0.32, 0.7, 0.05), (0.42, 1.0, 0.08))
    upper = lower * rng.uniform(0.65, 0.85)
    body = [ellipsoid((0, 0, 0), (lower, lower, thick)), ellipsoid((0, 1.1 * lower, 0), (upper, upper, thick))]
    top = 1.1 * lower + upper
    neck = box((0, top + length / 2 - 0.1, thick), (0.08, length, 0.04))
    return part("body", body) + part("neck", neck + box((0, top + length - 0.05, thick), (0.14, 0.18, 0.04)))


def _hammer(rng: np.random.Generator) -> list[Patch]:
    length, grip, head = rng.uniform((0.8, 0.03, 0.25), (1.3, 0.06, 0.45))
    handle = cylinder((0, length / 2, 0), grip, length)
    return part("handle", handle) + part("head", box((0, length, 0), (head, 0.16, 0.14)))


def _dumbbell(rng: np.random.Generator) -> list[Patch]:
    length, radius, width = rng.uniform((0.5, 0.15, 0.12), (0.9, 0.28, 0.25))
    patches = cylinder((0, 0, 0), 0.04, length)
    for side in (-1, 1):
        patches += cylinder((0, side * (length + width) / 2, 0), radius, width)
    return _turned(patches, _SIDEWAYS, (0, 0, 0))


def _wheel(rng: np.random.Generator) -> list[Patch]:
    radius, tube = rng.uniform((0.5, 0.06), (0.7, 0.12))
    patches = [torus((0, 0, 0), radius, tube), *cylinder((0, 0, 0), 0.1, 0.14)]
    spokes = int(rng.integers(4, 8))
    for i in range(spokes):
        turn = Rotation.from_euler("y", 2 * np.pi * i / spokes).as_matrix()
        patches += _turned(box((radius / 2, 0, 0), (radius, 0.03, 0.03)), turn, (0, 0, 0))
    return _turned(patches, _FORWARD, (0, 0, 0))


def _car(rng: np.random.Generator) -> list[Patch]:
    length, width, height, wheel = rng.uniform((1.6, 0.7, 0.3, 0.14), (2.2, 0.9, 0.45, 0.22))
    body = box((0, wheel + height / 2, 0), (width, height, length))
    cabin = rng.uniform(0.4, 0.6) * length
    body += box((0, wheel + height + 0.14, -0.05 * length), (0.85 * width, 0.28, cabin))
    wheels = []
    for x in (-1, 1):
        for z in (-0.32, 0.32):
            wheels += _turned(cylinder((0, 0, 0), wheel, 0.1), _SIDEWAYS, (x * width / 2, wheel, z * length))
    return part("body", body) + part("wheels", wheels)


def _rocket(rng: np.random.Generator) -> list[Patch]:
    radius, body, nose, fin = rng.uniform((0.12, 0.9, 0.25, 0.15), (0.2, 1.4, 0.5, 0.3))
    patches = part("body", cylinder((0, body / 2, 0), radius, body))
    patches += part("nose", lateral((0, body + nose / 2, 0), radius, 0.0, nose))
    for i in range(4):
        turn = Rotation.from_euler("y", np.pi / 2 * i).as_matrix()
        patches += part("fins", _turned(box((radius + fin / 2, fin / 2, 0), (fin, fin, 0.02)), turn, (0, 0, 0)))
    return patches


def _mushroom(rng: np.random.Generator) -> list[Patch]:
    stem, height, cap = rng.uniform((0.08, 0.35, 0.3), (0.16, 0.7, 0.5))
    patches = part("stem", cylinder((0, height / 2, 0), stem, height, 0.8 * stem))
    return patches + part("cap", ellipsoid((0, height, 0), (cap, rng.uniform(0.35, 0.6) * cap, cap)))


def _umbrella(rng: np.random.Generator) -> list[Patch]:
    radius, height, canopy = rng.uniform((0.5, 0.9, 0.2), (0.8, 1.3, 0.4))
    patches = part("stick", cylinder((0, height / 2, 0), 0.025, height))
    hook = moved(torus((0, 0, 0), 0.09, 0.025, share=0.5), _FORWARD, (0.09, 0, 0))
    patches += part("stick", hook)
    return patches + part("canopy", lateral((0, height - canopy / 2, 0), radius, 0.02, canopy))


def _person(rng: np.random.Generator) -> list[Patch]:
    legs, torso, width, head = rng.uniform((0.7, 0.5, 0.35, 0.11), (0.95, 0.65, 0.48, 0.14))
    patches = [ellipsoid((0, legs + torso + head, 0), (head, 1.2 * head, head))]
    patches += box((0, legs + torso / 2, 0), (width, torso, 0.22))
    stride = rng.uniform(0.0, 0.15)
    for side in (-1, 1):
        patches += cylinder((side * 0.25 * width, legs / 2, side * stride), 0.08, legs)
        patches += cylinder((side * (width / 2 + 0.07), legs + 0.5 * torso, -side * stride), 0.05, 1.1 * torso)
    return patches


def _plant(rng: np.random.Generator) -> list[Patch]:
    pot, height, stem = rng.uniform((0.18, 0.25, 0.2), (0.3, 0.45, 0.5))
    patches = cylinder((0, height / 2, 0), 0.7 * pot, height, pot) + cylinder((0, height + stem / 2, 0), 0.02, stem)
    for _ in range(int(rng.integers(6, 12))):
        turn = Rotation.from_euler("zy", [rng.uniform(0.2, 1.0), rng.uniform(0, 2 * np.pi)]).as_matrix()
        leaf = ellipsoid((rng.uniform(0.2, 0.35), 0, 0), (0.22, 0.02, 0.07))
        patches.append(moved(leaf, turn, (0, height + stem * rng.uniform(0.5, 1.0), 0)))
    return patches


def _keyboard(rng: np.random.Generator) -> list[Patch]:
    width, depth, thick = rng.uniform((1.0, 0.3, 0.03), (1.5, 0.45, 0.06))
    patches = box((0, 0, 0), (width, thick, depth))
    columns = int(rng.integers(8, 13))
    for z in (-0.3, 0.0, 0.3):
        for x in np.linspace(-0.43, 0.43, columns):
            patches += box((x * width, thick, z * depth), (0.6 * width / columns, 0.05, 0.2 * depth))
    return patches


def _laptop(rng: np.random.Generator) -> list[Patch]:
    width, depth, angle = rng.uniform((0.7, 0.5, 1.6), (1.0, 0.7, 2.2))
    patches = box((0, 0, 0), (width, 0.04, depth))
    lid = box((0, 0, depth / 2), (width, 0.03, depth))
    return patches + _turned(lid, Rotation.from_euler("x", -angle).as_matrix(), (0, 0, -depth / 2))


THINGS = {
    "bottle": _bottle,
    "bowl": _bowl,
    "car": _car,
    "cone": _cone,
    "cup": _cup,
    "dumbbell": _dumbbell,
    "guitar": _guitar,
    "hammer": _hammer,
    "hourglass": _hourglass,
    "keyboard": _keyboard,
    "laptop": _laptop,
    "monitor": _monitor,
    "mushroom": _mushroom,
    "person": _person,
    "plane": _plane,
    "plant": _plant,
    "rocket": _rocket,
    "tent": _tent,
    "umbrella": _umbrella,
    "vase": _vase,
    "wheel": _wheel,
}
