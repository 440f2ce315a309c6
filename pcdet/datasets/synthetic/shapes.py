"""Parametric shapes in ModelNet's and ShapeNetPart's text layouts: data sets that need no download."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from pcdet.datasets.synthetic.furniture import FURNITURE
from pcdet.datasets.synthetic.surfaces import Patch, sample_parts
from pcdet.datasets.synthetic.things import THINGS
from pcdet.utils.files import atomic_open, write_text

VARIANT = "simulated"  # prefix of the lists, as in modelnet40_train.txt
_TILT = 0.08  # radians, sigma of the tilt about the horizontal axes
_NOISE = 0.004  # sigma of the points' noise, in units of the shape's radius
_STRETCH = 0.15  # each axis is scaled by up to this share

Maker = Callable[[np.random.Generator], list[Patch]]

SHAPES: dict[str, Maker] = dict(sorted({**FURNITURE, **THINGS}.items()))

# The shapes whose parts are told apart, and the order of these.
PARTS = {
    "bottle": ("body", "neck"),
    "car": ("body", "wheels"),
    "chair": ("legs", "seat", "back"),
    "cup": ("body", "handle"),
    "guitar": ("body", "neck"),
    "hammer": ("handle", "head"),
    "lamp": ("foot", "pole", "shade"),
    "mushroom": ("stem", "cap"),
    "plane": ("body", "wings", "tail"),
    "rocket": ("body", "nose", "fins"),
    "table": ("legs", "top"),
    "umbrella": ("stick", "canopy"),
}


def sample_shape(name: str, points: int, rng: np.random.Generator) -> np.ndarray:
    """(points, 6) float32 coordinates and normals of a random shape of the named class, y up.

    The shape is stretched along its axes, turned about y by any angle, tilted a little, and noisy.
    """
    return _sample(SHAPES[name](rng), points, rng)[0]


def sample_shape_parts(name: str, points: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`sample_shape`, and the part of each point (points,), a position in ``PARTS[name]``."""
    patches = SHAPES[name](rng)
    cloud, of_patch = _sample(patches, points, rng)
    return cloud, np.array([PARTS[name].index(patch.part) for patch in patches])[of_patch]


def _sample(patches: list[Patch], points: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    cloud, of_patch = sample_parts(patches, points, rng)
    stretch = 1 + rng.uniform(-_STRETCH, _STRETCH, size=3)
    turn = Rotation.from_euler("yxz", [rng.uniform(0, 2 * np.pi), *rng.normal(0, _TILT, size=2)]).as_matrix()
    xyz = (cloud[:, :3] * stretch) @ turn.T
    normals = cloud[:, 3:] / stretch  # covectors: they stay perpendicular to the stretched surface
    normals = (normals / np.linalg.norm(normals, axis=1, keepdims=True)) @ turn.T
    radius = np.linalg.norm(xyz - xyz.mean(axis=0), axis=1).max()
    noisy = xyz + _NOISE * radius * rng.standard_normal(xyz.shape)
    return np.concatenate([noisy, normals], axis=1).astype(np.float32), of_patch


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
    held_out = _tested(per_class, test_fraction, points)
    out = Path(out)
    ids: dict[str, list[str]] = {"train": [], "test": []}
    with tqdm(total=per_class * len(SHAPES), desc="shapes", unit="shape", disable=not sys.stderr.isatty()) as bar:
        for position, name in enumerate(SHAPES):
            for i in range(per_class):
                cloud = sample_shape(name, points, np.random.default_rng([seed, position, i]))
                cloud_id = f"{name}_{i + 1:04d}"
                _write_cloud(out / name / f"{cloud_id}.txt", cloud, ",")
                ids["train" if i < per_class - held_out else "test"].append(cloud_id)
                bar.update()
    for split, members in ids.items():
        write_text(out / f"{VARIANT}_{split}.txt", "".join(f"{i}\n" for i in members))
    write_text(out / f"{VARIANT}_shape_names.txt", "".join(f"{name}\n" for name in SHAPES))
    return out


def _tested(per_class: int, test_fraction: float, points: int) -> int:
    """Shapes of a class in the test split. Raises ``ValueError`` for numbers out of range."""
    held_out = round(per_class * test_fraction)
    if not 0 < held_out < per_class or points < 1:
        raise ValueError(
            f"{per_class} shapes a class with a test fraction of {test_fraction} and {points} points: each split "
            "needs at least one shape of every class, and each shape one point"
        )
    return held_out


def simulate_shapenetpart(
    out: str | Path,
    per_class: int = 60,
    seed: int = 0,
    *,
    test_fraction: float = 0.2,
    points: int = 2048,
) -> Path:
    """Write the shapes that have parts in ShapeNetPart's layout, and return the folder.

    Arguments and errors are those of :func:`simulate_modelnet`. Of the shapes that are not tested every tenth, and at
    least one a class, is in the list ``val``. Parts are numbered through in the order of ``PARTS``.
    """
    held_out = _tested(per_class, test_fraction, points)
    trained = per_class - held_out
    validated = max(trained // 10, 1)
    out = Path(out)
    lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    first_part = 0
    with tqdm(total=per_class * len(PARTS), desc="shapes", unit="shape", disable=not sys.stderr.isatty()) as bar:
        for position, (name, parts) in enumerate(PARTS.items()):
            folder = f"{position:08d}"
            for i in range(per_class):
                cloud, part = sample_shape_parts(name, points, np.random.default_rng([seed, position, i]))
                rows = np.concatenate([cloud, part[:, None] + first_part], axis=1)
                _write_cloud(out / folder / f"{name}_{i + 1:04d}.txt", rows, " ")
                split = "test" if i >= trained else "val" if i >= trained - validated else "train"
                lists[split].append(f"shape_data/{folder}/{name}_{i + 1:04d}")
                bar.update()
            first_part += len(parts)
    for split, members in lists.items():
        write_text(out / "train_test_split" / f"shuffled_{split}_file_list.json", json.dumps(members))
    categories = "".join(f"{name}\t{position:08d}\n" for position, name in enumerate(PARTS))
    write_text(out / "synsetoffset2category.txt", categories)
    return out


def _write_cloud(path: Path, cloud: np.ndarray, delimiter: str) -> None:
    with atomic_open(path, "w") as file:
        np.savetxt(file, cloud, fmt="%.6f", delimiter=delimiter)
