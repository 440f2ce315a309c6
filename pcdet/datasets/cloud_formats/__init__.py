"""Readers of point clouds by the file's suffix."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pcdet.datasets.cloud_formats.arrays import (
    bin_points,
    npy_points,
    npz_points,
    nuscenes_points,
    read_cloud,
)
from pcdet.datasets.cloud_formats.las import las_points
from pcdet.datasets.cloud_formats.layout import CloudLayout, finite_rows
from pcdet.datasets.cloud_formats.pcd import pcd_points
from pcdet.datasets.cloud_formats.ply import ply_points
from pcdet.datasets.cloud_formats.text import text_points

# A reader gives (N, C) float32 points, the layout's features in their order.
Reader = Callable[[Path, CloudLayout], np.ndarray]
READERS: dict[str, Reader] = {
    ".bin": bin_points,
    ".pcd.bin": nuscenes_points,
    ".npy": npy_points,
    ".npz": npz_points,
    ".pcd": pcd_points,
    ".ply": ply_points,
    ".las": las_points,
    ".laz": las_points,
    ".xyz": text_points,
    ".txt": text_points,
    ".csv": text_points,
}
SUFFIXES = tuple(READERS)
# Suffixes that files beside clouds bear too: notes, labels.
AMBIGUOUS = (".txt", ".csv")

__all__ = [
    "AMBIGUOUS", "READERS", "SUFFIXES", "CloudLayout", "Reader", "finite_rows", "read_cloud",
    "read_points", "stem_of", "suffix_of",
]  # fmt: skip


def suffix_of(path: str | Path) -> str | None:
    """The suffix that decides how a file is read (``.pcd.bin`` before ``.bin``), or ``None`` if it is no cloud."""
    name = Path(path).name.lower()
    fitting = [suffix for suffix in READERS if name.endswith(suffix)]
    return max(fitting, key=len, default=None)


def stem_of(path: str | Path) -> str:
    """A file's name without the suffix that :func:`suffix_of` finds."""
    name = Path(path).name
    return name[: len(name) - len(suffix_of(path) or "")]


def read_points(path: str | Path, features: Sequence[str] | CloudLayout) -> tuple[np.ndarray, int]:
    """(N, C) float32 points of a file, a column for each of ``features``, and how many were dropped as not finite.

    Raises ``FileNotFoundError``, or ``ValueError`` naming the file and what is wrong with it.
    """
    path = Path(path)
    suffix = suffix_of(path)
    if suffix is None:
        raise ValueError(f"{path}: no point cloud is read from such a file; known are {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FileNotFoundError(f"The point cloud {path} is missing")
    return finite_rows(READERS[suffix](path, CloudLayout.of(features)))
