"""The two layouts of ModelNet (Wu et al. 2015): 10,000 sampled points with normals as text, and HDF5 files."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

NORMAL_COLUMNS = 6  # x y z nx ny nz
_EXPECTED = (
    "a folder with {variant}_train.txt and {variant}_test.txt (the layout of modelnet40_normal_resampled) or with "
    "train_files.txt and test_files.txt (the layout of modelnet40_ply_hdf5_2048)"
)


class Split(NamedTuple):
    """What one split consists of before anything large is read."""

    layout: str  # "txt" or "h5"
    files: tuple[Path, ...]
    ids: tuple[str, ...]  # of a txt layout, one a file
    class_names: tuple[str, ...]  # in the order of the labels


class Clouds(NamedTuple):
    """All clouds of a split, cut to equally many points."""

    points: np.ndarray  # (M, N, 3 or 6) float32
    labels: np.ndarray  # (M,) int64, index into the folder's class names
    ids: tuple[str, ...]


def find_split(root: Path, variant: str, split: str) -> Split:
    """Find the files of a split without reading them.

    Raises ``ValueError`` that names the folder, what it holds and what was expected there, or the file that is absent.
    """
    listing = root / f"{variant}_{split}.txt"
    if listing.is_file():
        ids = tuple(_lines(listing))
        files = tuple(root / class_of(i) / f"{i}.txt" for i in ids)
        return _checked(Split("txt", files, ids, _class_names(root, variant)), listing)
    listing = root / f"{split}_files.txt"
    if listing.is_file():
        # The published lists name the files relative to where training was once started.
        files = tuple(root / Path(line).name for line in _lines(listing))
        return _checked(Split("h5", files, (), _class_names(root, variant)), listing)
    found = ", ".join(sorted(path.name for path in root.iterdir())[:12]) or "nothing"
    raise ValueError(f"{root} is not {_EXPECTED.format(variant=variant)}; it holds {found}")


def _checked(split: Split, listing: Path) -> Split:
    if not split.files:
        raise ValueError(f"{listing} lists 0 clouds")
    for file in split.files:
        if not file.is_file():
            raise ValueError(f"{file} is absent, but {listing} lists it")
    return split


def class_of(cloud_id: str) -> str:
    """``night_stand_0001`` -> ``night_stand``."""
    return cloud_id.rsplit("_", 1)[0]


def _class_names(root: Path, variant: str) -> tuple[str, ...]:
    names = [f"{variant}_shape_names.txt"]
    if variant != "modelnet10":  # shape_names.txt lists all forty classes
        names.append("shape_names.txt")
    for name in names:
        if (root / name).is_file():
            return tuple(_lines(root / name))
    raise ValueError(f"{root} has no {' or '.join(names)}, which lists the classes")


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_split(split: Split, num_points: int, progress: bool) -> Clouds:
    """Read the first ``num_points`` rows of every cloud.

    Raises ``ValueError`` that names the file, and the line where there is one, for clouds that are too short, hold
    something else than numbers, or belong to no known class.
    """
    if split.layout == "h5":
        return _read_h5(split, num_points)
    bar = tqdm(split.files, desc="read clouds", unit="cloud", disable=not progress)
    labels = np.array([_label(i, split.class_names) for i in split.ids], dtype=np.int64)
    return Clouds(np.stack([read_txt(file, num_points) for file in bar]), labels, split.ids)


def _label(cloud_id: str, class_names: tuple[str, ...]) -> int:
    if class_of(cloud_id) not in class_names:
        raise ValueError(f"the cloud {cloud_id} belongs to no class of {', '.join(class_names)}")
    return class_names.index(class_of(cloud_id))


def read_txt(path: Path, num_points: int) -> np.ndarray:
    """(N, 6) float32: the first N rows ``x,y,z,nx,ny,nz``."""
    try:
        rows = np.loadtxt(path, delimiter=",", dtype=np.float32, max_rows=num_points, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} should hold rows x,y,z,nx,ny,nz: {error}") from error
    if rows.shape != (num_points, NORMAL_COLUMNS):
        raise ValueError(
            f"{path} holds {rows.shape[0]} rows of {rows.shape[1]} numbers; {num_points} rows of {NORMAL_COLUMNS} are "
            "wanted (NUM_POINTS)"
        )
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(f"{path}:{int(finite.argmin()) + 1}: NaN or infinite coordinate")
    return rows


def _read_h5(split: Split, num_points: int) -> Clouds:
    """Clouds of HDF5 files: ``data`` (n, 2048, 3), ``label`` (n, 1) and, where there are any, ``normal``."""
    parts = [_read_one_h5(file, num_points) for file in split.files]
    points = np.concatenate([p for p, _ in parts])
    labels = np.concatenate([part for _, part in parts])
    if labels.min() < 0 or labels.max() >= len(split.class_names):
        raise ValueError(
            f"{split.files[0].parent}: label {labels.max()}, but there are {len(split.class_names)} classes"
        )
    ids = tuple(f"{file.stem}_{i:04d}" for file, (p, _) in zip(split.files, parts, strict=True) for i in range(len(p)))
    return Clouds(points, labels, ids)


def _read_one_h5(path: Path, num_points: int) -> tuple[np.ndarray, np.ndarray]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            points = file["data"][:, :num_points].astype(np.float32)
            if "normal" in file:
                points = np.concatenate([points, file["normal"][:, :num_points].astype(np.float32)], axis=2)
            labels = file["label"][:].reshape(-1).astype(np.int64)
    except (OSError, KeyError) as error:
        raise ValueError(f"{path} is not an HDF5 file with the keys data and label: {error}") from error
    if points.shape[1] < num_points:
        raise ValueError(f"{path} holds clouds of {points.shape[1]} points; {num_points} are wanted (NUM_POINTS)")
    if not np.isfinite(points).all():
        raise ValueError(f"{path}: cloud {int(np.argwhere(~np.isfinite(points))[0, 0])} has a NaN or infinite number")
    if len(labels) != len(points):
        raise ValueError(f"{path} holds {len(points)} clouds but {len(labels)} labels")
    return points, labels
