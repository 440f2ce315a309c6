"""Readers of point clouds by the file's suffix."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pcdet.datasets.cloud_formats.arrays import finite_rows, read_cloud, read_npy

# A reader gives the (N, C) finite float32 points with the asked features in their order, and the number dropped.
Reader = Callable[[Path, Sequence[str]], tuple[np.ndarray, int]]
READERS: dict[str, Reader] = {
    ".bin": lambda path, features: read_cloud(path, len(features)),
    ".npy": lambda path, features: read_npy(path, len(features)),
}
SUFFIXES = tuple(READERS)

__all__ = ["READERS", "SUFFIXES", "Reader", "finite_rows", "read_cloud", "read_npy", "read_points", "suffix_of"]


def suffix_of(path: str | Path) -> str | None:
    """The suffix that decides how a file is read (``.pcd.bin`` before ``.bin``), or ``None`` if it is no cloud."""
    name = Path(path).name.lower()
    fitting = [suffix for suffix in READERS if name.endswith(suffix)]
    return max(fitting, key=len, default=None)


def stem_of(path: str | Path) -> str:
    """A file's name without the suffix that :func:`suffix_of` finds."""
    name = Path(path).name
    return name[: len(name) - len(suffix_of(path) or "")]


def read_points(path: str | Path, features: Sequence[str]) -> tuple[np.ndarray, int]:
    """(N, C) float32 points of a file, a column for each of ``features``, and how many were dropped as not finite.

    Raises ``FileNotFoundError``, or ``ValueError`` naming the file and what is wrong with it.
    """
    path = Path(path)
    suffix = suffix_of(path)
    if suffix is None:
        raise ValueError(f"{path}: no point cloud is read from such a file; known are {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FileNotFoundError(f"The point cloud {path} is missing")
    return READERS[suffix](path, features)
