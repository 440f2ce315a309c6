"""Clouds as bare numbers: ``.bin`` and ``.npy``, whose columns are known by their order alone."""

from pathlib import Path

import numpy as np


def finite_rows(points: np.ndarray) -> tuple[np.ndarray, int]:
    """(N, C) -> the rows without NaN or infinity, and how many were dropped."""
    finite = np.isfinite(points).all(axis=1)
    dropped = int(len(points) - finite.sum())
    return (points[finite] if dropped else points), dropped


def read_cloud(path: str | Path, num_features: int = 4) -> tuple[np.ndarray, int]:
    """(N, C) float32 points of a ``.bin`` file, and how many were dropped because a value was NaN or infinite.

    Raises ``FileNotFoundError``, or ``ValueError`` naming the file and the remainder where its size does not fit.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"The point cloud {path} is missing")
    size, row = path.stat().st_size, 4 * num_features
    if size % row:
        raise ValueError(
            f"{path} has {size} bytes, which is {size % row} more than a multiple of {row} "
            f"({num_features} float32 a point): it is damaged or has another number of values a point"
        )
    return finite_rows(np.fromfile(path, dtype=np.float32).reshape(-1, num_features))


def read_npy(path: str | Path, num_features: int = 4) -> tuple[np.ndarray, int]:
    """As :func:`read_cloud` for a ``.npy`` file of shape (N, C or more), of any number type and memory order.

    Raises ``ValueError`` naming the file where its array has another shape or holds objects.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a NumPy array of numbers: {error}") from error
    return finite_rows(columns_of(array, num_features, str(path)))


def columns_of(array: np.ndarray, num_features: int, place: str) -> np.ndarray:
    """The first C columns of an (N, C or more) array of numbers as contiguous float32."""
    if array.ndim != 2 or array.shape[1] < num_features:
        raise ValueError(f"{place} holds an array of shape {array.shape}, expected (N, {num_features})")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{place} holds {array.dtype}, expected numbers")
    return np.ascontiguousarray(array[:, :num_features], dtype=np.float32)
