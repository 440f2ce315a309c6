"""Point clouds in single files, of any sensor."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.dataset import SceneDataset
from pcdet.structures.scene import Scene

SUFFIXES = (".bin", ".npy")


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
    points = np.fromfile(path, dtype=np.float32).reshape(-1, num_features)
    finite = np.isfinite(points).all(axis=1)
    dropped = int(len(points) - finite.sum())
    return (points[finite] if dropped else points), dropped


def read_npy(path: str | Path, num_features: int = 4) -> tuple[np.ndarray, int]:
    """As :func:`read_cloud` for a ``.npy`` file of shape (N, C or more), of any number type and memory order.

    Raises ``ValueError`` naming the file where its array has another shape or holds objects.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path} is not a NumPy array of numbers: {error}") from error
    if array.ndim != 2 or array.shape[1] < num_features:
        raise ValueError(f"{path} holds an array of shape {array.shape}, expected (N, {num_features})")
    points = np.ascontiguousarray(array[:, :num_features], dtype=np.float32)
    finite = np.isfinite(points).all(axis=1)
    return points[finite], int(len(points) - finite.sum())


def cloud_doubts(points: np.ndarray) -> list[str]:
    """What is odd about (N, 4) points that should be x y z intensity in metres and [0, 1]; usually nothing."""
    if len(points) == 0:
        return []
    doubts = []
    low, high = float(points[:, 3].min()), float(points[:, 3].max())
    if high > 1.001 or low < -0.001:
        doubts.append(
            f"intensity runs from {low:g} to {high:g}, but models of KITTI expect 0 to 1: set INTENSITY_SCALE, "
            f"for example {1 / max(abs(low), high):.3g}"
        )
    elif high == low:
        doubts.append(f"intensity is {low:g} everywhere, so it was probably not recorded; it is used as it is")
    low, high = np.quantile(points[:, :3], (0.05, 0.95), axis=0)  # (3,) each
    if (high - low)[2] > 0.5 * (high - low)[:2].max() or np.abs(points[:, :3]).max() > 1000:
        extents = ", ".join(f"{v:.3g}" for v in high - low)
        doubts.append(
            f"nine tenths of the points spread over {extents} m along x, y, z, and the farthest lie at "
            f"{np.abs(points[:, :3]).max():.3g} m: has the file another number of values a point?"
        )
    return doubts


def cloud_files(path: str | Path, suffix: str | None = None) -> list[Path]:
    """A file itself, or the ``.bin`` and ``.npy`` files (or those with ``suffix``) of a folder, sorted.

    Raises ``FileNotFoundError`` naming the folder looked in where there is none.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    suffixes = SUFFIXES if suffix is None else (suffix,)
    files = sorted(p for p in path.glob("*") if p.suffix in suffixes) if path.is_dir() else []
    if not files:
        raise FileNotFoundError(f"{path} is neither a point cloud nor a folder with files {', '.join(suffixes)}")
    return files


class CloudFiles(SceneDataset):
    """Unlabelled clouds, processed as a DATA_CONFIG says for evaluation: what a demonstration feeds a model.

    Of the settings POINT_CLOUD_RANGE, POINT_FEATURE_ENCODING, DATA_PROCESSOR and INTENSITY_SCALE are read. Scenes are
    named after their files and have neither calibration nor image.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        settings: Mapping[str, Any],
        class_names: Sequence[str],
        logger: logging.Logger,
    ):
        super().__init__(
            class_names,
            False,
            0,
            logger,
            root=Path(files[0]).parent,
            point_cloud_range=settings["POINT_CLOUD_RANGE"],
            point_feature_encoding=settings["POINT_FEATURE_ENCODING"],
            data_augmentor=None,
            data_processor=settings["DATA_PROCESSOR"],
        )
        self.files = [Path(f) for f in files]
        self.intensity_scale = float(settings.get("INTENSITY_SCALE", 1.0))

    def __len__(self) -> int:
        return len(self.files)

    def load_scene(self, index: int) -> Scene:
        """The cloud of file ``index``; what is odd about it is logged."""
        path = self.files[index]
        read = read_npy if path.suffix == ".npy" else read_cloud
        points, dropped = read(path, len(self.source_features))
        if dropped:
            self.logger.warning("%s: %d points are NaN or infinite and were dropped", path, dropped)
        if "intensity" in self.source_features:
            column = self.source_features.index("intensity")
            points[:, column] *= self.intensity_scale
            for doubt in cloud_doubts(points[:, [0, 1, 2, column]]):
                self.logger.warning("%s: %s", path, doubt)
        return Scene(path.stem, points)
