"""Clouds as arrays: ``.bin``, ``.npy``, ``.npz``, and nuScenes' ``.pcd.bin``."""

from pathlib import Path

import numpy as np

from pcdet.datasets.cloud_formats.layout import CloudLayout, finite_rows

NUSCENES_FEATURES = ("x", "y", "z", "intensity", "ring")


def read_cloud(path: str | Path, num_features: int = 4) -> tuple[np.ndarray, int]:
    """(N, C) float32 points of a ``.bin`` file, and how many were dropped because a value was NaN or infinite.

    Raises ``FileNotFoundError``, or ``ValueError`` naming the file and the remainder where its size does not fit.
    """
    return finite_rows(read_floats(Path(path), num_features))


def read_floats(path: Path, num_features: int) -> np.ndarray:
    """(N, C) float32 of a file that holds nothing else. Raises as :func:`read_cloud`."""
    if not path.is_file():
        raise FileNotFoundError(f"The point cloud {path} is missing")
    size, row = path.stat().st_size, 4 * num_features
    if size % row:
        raise ValueError(
            f"{path} has {size} bytes, which is {size % row} more than a multiple of {row} "
            f"({num_features} float32 a point): it is damaged or has another number of values a point"
        )
    return np.fromfile(path, dtype=np.float32).reshape(-1, num_features)


def bin_points(path: Path, layout: CloudLayout) -> np.ndarray:
    """float32 rows of the layout's columns."""
    return layout.by_place(read_floats(path, len(layout.columns)), path)


def nuscenes_points(path: Path, layout: CloudLayout) -> np.ndarray:
    """nuScenes' sweeps: float32 rows of x y z intensity ring."""
    table = read_floats(path, len(NUSCENES_FEATURES))
    return layout.by_name(dict(zip(NUSCENES_FEATURES, table.T, strict=True)), path)


def npy_points(path: Path, layout: CloudLayout) -> np.ndarray:
    """An (N, C or more) array by place, or an (N,) array of records by name."""
    return array_points(_load(path), layout, path)


def npz_points(path: Path, layout: CloudLayout) -> np.ndarray:
    """The array ``points``, or the only array of the file, or else its (N,) arrays by name."""
    with _load(path) as archive:
        names = archive.files
        whole = "points" if "points" in names else names[0] if len(names) == 1 else None
        try:
            arrays = {name: archive[name] for name in ([whole] if whole else names)}
        except ValueError as error:
            raise ValueError(f"{path} holds an array that is not made of numbers: {error}") from error
    if whole:
        return array_points(arrays[whole], layout, f"{path}, '{whole}',")
    columns = {name: array for name, array in arrays.items() if array.ndim == 1}
    if len({len(array) for array in columns.values()}) != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(
            f"{path} holds {shapes}: expected 'points' (N, {len(layout.columns)}), or equally long columns"
        )
    return layout.by_name(columns, path)


def array_points(array: np.ndarray, layout: CloudLayout, place: str | Path) -> np.ndarray:
    """A plain array by place, an array of records by name."""
    if array.dtype.names and array.ndim == 1:
        return layout.by_name({name: array[name] for name in array.dtype.names}, place)
    return layout.by_place(array, place)


def _load(path: Path):
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is not a NumPy file of numbers: {error}") from error
