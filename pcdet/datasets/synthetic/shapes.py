"""Parametric shapes in ModelNet's text layout: a classification set that needs no download."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from pcdet.datasets.synthetic.surfaces import (
    Patch,
    box,
    cylinder,
    ellipsoid,
    lateral,
    parallelogram,
    sample_surface,
    torus,
)
from pcdet.utils.files import atomic_open, write_text

VARIANT = "simulated"  # prefix of the lists, as in modelnet40_train.txt
_TILT = 0.08  # radians, sigma of the tilt about the horizontal axes
_NOISE = 0.004  # sigma of the points' noise, in units of the shape's radius
_STRETCH = 0.15  # each axis is scaled by up to this share

Maker = Callable[[np.random.Generator], list[Patch]]


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
    return legs + box((0, height + top / 2, 0), (width, top, depth))


def _stool(rng: np.random.Generator) -> list[Patch]:
    radius, height, top = rng.uniform((0.25, 0.5, 0.04), (0.4, 0.9, 0.12))
    legs = _legs(1.5 * radius, 1.5 * radius, height, rng.uniform(0.04, 0.08))
    return legs + cylinder((0, height + top / 2, 0), radius, top)


def _chair(rng: np.random.Generator) -> list[Patch]:
    width, depth, height, back = rng.uniform((0.4, 0.4, 0.35, 0.3), (0.6, 0.6, 0.55, 0.7))
    thick = rng.uniform(0.03, 0.08)
    seat = box((0, height + thick / 2, 0), (width, thick, depth))
    rest = box((0, height + thick + back / 2, -(depth - thick) / 2), (width, back, thick))
    return _legs(width, depth, height, rng.uniform(0.03, 0.07)) + seat + rest


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
    patches = cylinder((0, 0.02, 0), foot, 0.04) + cylinder((0, height / 2, 0), 0.03, height)
    return [*patches, lateral((0, height + shade / 2 - 0.05, 0), low, low * rng.uniform(0.3, 0.8), shade)]


def _bottle(rng: np.random.Generator) -> list[Patch]:
    radius, body, neck, shoulder = rng.uniform((0.2, 0.5, 0.2, 0.1), (0.35, 1.0, 0.5, 0.25))
    narrow = radius * rng.uniform(0.2, 0.4)
    patches = cylinder((0, body / 2, 0), radius, body)[:2]
    patches.append(lateral((0, body + shoulder / 2, 0), radius, narrow, shoulder))
    return patches + cylinder((0, body + shoulder + neck / 2, 0), narrow, neck)


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
    return [
        *patches,
        _moved(upright, quarter @ Rotation.from_euler("y", np.pi / 2).as_matrix(), (radius, height / 2, 0)),
    ]


def _moved(patch: Patch, matrix: np.ndarray, offset) -> Patch:
    def sample(count, rng):
        points, normals = patch.sample(count, rng)
        return points @ matrix.T + np.asarray(offset), normals @ matrix.T

    return Patch(patch.area, sample)


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
    patches = [ellipsoid((0, 0, 0), (body, body, length / 2))]
    patches += box((0, 0, 0.05 * length), (span, 0.03, chord))
    patches += box((0, 0.02, -0.45 * length), (0.4 * span, 0.02, 0.5 * chord))
    return patches + box((0, 0.12, -0.45 * length), (0.02, 0.26, 0.5 * chord))


SHAPES: dict[str, Maker] = {
    "bed": _bed,
    "bottle": _bottle,
    "chair": _chair,
    "cone": _cone,
    "cup": _cup,
    "lamp": _lamp,
    "monitor": _monitor,
    "plane": _plane,
    "shelf": _shelf,
    "sofa": _sofa,
    "stool": _stool,
    "table": _table,
    "tent": _tent,
    "vase": _vase,
}


def sample_shape(name: str, points: int, rng: np.random.Generator) -> np.ndarray:
    """(points, 6) float32 coordinates and normals of a random shape of the named class, y up.

    The shape is stretched along its axes, turned about y by any angle, tilted a little, and noisy.
    """
    cloud = sample_surface(SHAPES[name](rng), points, rng)
    stretch = 1 + rng.uniform(-_STRETCH, _STRETCH, size=3)
    turn = Rotation.from_euler("yxz", [rng.uniform(0, 2 * np.pi), *rng.normal(0, _TILT, size=2)]).as_matrix()
    xyz = (cloud[:, :3] * stretch) @ turn.T
    normals = cloud[:, 3:] / stretch  # covectors: they stay perpendicular to the stretched surface
    normals = (normals / np.linalg.norm(normals, axis=1, keepdims=True)) @ turn.T
    radius = np.linalg.norm(xyz - xyz.mean(axis=0), axis=1).max()
    noisy = xyz + _NOISE * radius * rng.standard_normal(xyz.shape)
    return np.concatenate([noisy, normals], axis=1).astype(np.float32)


def simulate_modelnet(
    out: str | Path,
    per_class: int = 100,
    seed: int = 0,
    *,
    test_fraction: float = 0.2,
    points: int = 2048,
) -> Path:
    """Write simulated shapes in the layout of ``modelnet40_normal_resampled`` and return the folder.

    Writes ``<class>/<class>_<NNNN>.txt`` with rows ``x,y,z,nx,ny,nz``, ``simulated_{train,test}.txt`` and
    ``simulated_shape_names.txt``. Shape ``i`` of a class depends on ``(seed, class, i)`` only.

    Args:
        out: the folder, made if it is absent.
        per_class: shapes of each class.
        seed: seed of the data set.
        test_fraction: share of the shapes in the test split, the last of each class.
        points: points of each shape.

    Raises:
        ValueError: for numbers out of range.
    """
    held_out = round(per_class * test_fraction)
    if not 0 < held_out < per_class or points < 1:
        raise ValueError(
            f"{per_class} shapes a class with a test fraction of {test_fraction} and {points} points: each split "
            "needs at least one shape of every class, and each shape one point"
        )
    out = Path(out)
    ids: dict[str, list[str]] = {"train": [], "test": []}
    with tqdm(total=per_class * len(SHAPES), desc="shapes", unit="shape", disable=not sys.stderr.isatty()) as bar:
        for position, name in enumerate(SHAPES):
            for i in range(per_class):
                cloud = sample_shape(name, points, np.random.default_rng([seed, position, i]))
                cloud_id = f"{name}_{i + 1:04d}"
                _write_cloud(out / name / f"{cloud_id}.txt", cloud)
                ids["train" if i < per_class - held_out else "test"].append(cloud_id)
                bar.update()
    for split, members in ids.items():
        write_text(out / f"{VARIANT}_{split}.txt", "".join(f"{i}\n" for i in members))
    write_text(out / f"{VARIANT}_shape_names.txt", "".join(f"{name}\n" for name in SHAPES))
    return out


def _write_cloud(path: Path, cloud: np.ndarray) -> None:
    with atomic_open(path, "w") as file:
        np.savetxt(file, cloud, fmt="%.6f", delimiter=",")
