"""The two layouts of ModelNet (Wu et al. 2015): 10,000 sampled points with normals as text, and HDF5 files."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pcdet.datasets.whole_clouds.packs import Cloud
from pcdet.datasets.whole_clouds.text import read_rows
from pcdet.utils.files import read_text

COLUMNS = ("x", "y", "z", "nx", "ny", "nz")
_EXPECTED = (
    "a folder with {variant}_train.txt and {variant}_test.txt (the layout of modelnet40_normal_resampled) or with "
    "train_files.txt and test_files.txt (the layout of modelnet40_ply_hdf5_2048)"
)


class Split(NamedTuple):
    """What one split consists of before anything large is read."""

    layout: str  # "txt" or "h5"
    files: tuple[Path, ...]
    class_names: tuple[str, ...]  # in the order of the labels


def find_split(root: Path, variant: str, split: str) -> Split:
    """Find the files of a split without reading them.

    Raises ``ValueError`` that names the folder, what it holds and what was expected there, or the file that is absent.
    """
    listing = root / f"{variant}_{split}.txt"
    if listing.is_file():
        ids = tuple(_lines(listing))
        files = tuple(root / class_of(i) / f"{i}.txt" for i in ids)
        return _checked(Split("txt", files, _class_names(root, variant)), listing)
    listing = root / f"{split}_files.txt"
    if listing.is_file():
        # The published lists name the files relative to where training was once started.
        files = tuple(root / Path(line).name for line in _lines(listing))
        return _checked(Split("h5", files, _class_names(root, variant)), listing)
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
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def read_file(path: Path, split: Split) -> Iterator[Cloud]:
    """All clouds of a file of ``split`` with all their points.

    Raises ``ValueError`` that names the file, and the line where there is one, for clouds that hold something else
    than numbers, or belong to no known class.
    """
    if split.layout == "h5":
        yield from _read_h5(path, split)
        return
    if class_of(path.stem) not in split.class_names:
        raise ValueError(f"the cloud {path.stem} belongs to no class of {', '.join(split.class_names)}")
    yield Cloud(path.stem, read_rows(path, COLUMNS), split.class_names.index(class_of(path.stem)))


def _read_h5(path: Path, split: Split) -> Iterator[Cloud]:
    """Clouds of an HDF5 file: ``data`` (n, 2048, 3), ``label`` (n, 1) and, where there are any, ``normal``."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            points = file["data"][:].astype(np.float32)
            if "normal" in file:
                points = np.concatenate([points, file["normal"][:].astype(np.float32)], axis=2)
            labels = file["label"][:].reshape(-1).astype(np.int64)
    except (OSError, KeyError) as error:
        raise ValueError(f"{path} is not an HDF5 file with the keys data and label: {error}") from error
    if not np.isfinite(points).all():
        raise ValueError(f"{path}: cloud {int(np.argwhere(~np.isfinite(points))[0, 0])} has a NaN or infinite number")
    if len(labels) != len(points):
        raise ValueError(f"{path} holds {len(points)} clouds but {len(labels)} labels")
    if len(labels) and (labels.min() < 0 or labels.max() >= len(split.class_names)):
        raise ValueError(f"{path}: label {labels.max()}, but there are {len(split.class_names)} classes")
    for i, (cloud, label) in enumerate(zip(points, labels, strict=True)):
        yield Cloud(f"{path.stem}_{i:04d}", cloud, int(label))
