"""Point clouds in single files, of any sensor."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.cloud_formats import (
    AMBIGUOUS,
    SUFFIXES,
    read_cloud,
    read_npy,
    read_points,
    stem_of,
    suffix_of,
)
from pcdet.datasets.dataset import SceneDataset, cloud_layout
from pcdet.structures.scene import Scene

__all__ = ["CloudFiles", "cloud_doubts", "cloud_files", "read_cloud", "read_npy"]


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
    """A file itself, or the clouds of a folder (or those with ``suffix``), sorted.

    Text files are taken for clouds only where a folder holds no others. Raises ``FileNotFoundError`` naming the folder
    looked in where there is none.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    suffixes = SUFFIXES if suffix is None else (suffix,)
    files = sorted(p for p in path.glob("*") if suffix_of(p) in suffixes) if path.is_dir() else []
    if suffix is None:
        files = [p for p in files if suffix_of(p) not in AMBIGUOUS] or files
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
        self.layout = cloud_layout(settings["POINT_FEATURE_ENCODING"])
        self.intensity_scale = float(settings.get("INTENSITY_SCALE", 1.0))

    def __len__(self) -> int:
        return len(self.files)

    def load_scene(self, index: int) -> Scene:
        """The cloud of file ``index``; what is odd about it is logged."""
        path = self.files[index]
        points, dropped = read_points(path, self.layout)
        if dropped:
            self.logger.warning("%s: %d points are NaN or infinite and were dropped", path, dropped)
        if "intensity" in self.source_features:
            column = self.source_features.index("intensity")
            points[:, column] *= self.intensity_scale
            for doubt in cloud_doubts(points[:, [0, 1, 2, column]]):
                self.logger.warning("%s: %s", path, doubt)
        return Scene(stem_of(path), points)
