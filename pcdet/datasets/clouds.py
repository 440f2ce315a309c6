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
    read_points,
    stem_of,
    suffix_of,
)
from pcdet.datasets.dataset import SceneDataset, cloud_layout
from pcdet.datasets.doubts import cloud_doubts, fit_doubts
from pcdet.structures.scene import Scene

__all__ = ["CloudFiles", "cloud_doubts", "cloud_files", "read_cloud"]


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
    """Unlabelled clouds, processed as a DATA_CONFIG says for evaluation: what a model is fed for predictions.

    Of the settings POINT_CLOUD_RANGE, POINT_FEATURE_ENCODING, DATA_PROCESSOR and INTENSITY_SCALE are read. Scenes are
    named after their files and have neither calibration nor image. ``ground`` is the height that objects stand at where
    the model tells it; a cloud whose ground lies elsewhere is doubted.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        settings: Mapping[str, Any],
        class_names: Sequence[str],
        logger: logging.Logger,
        *,
        ground: float | None = None,
    ):
        super().__init__(
            class_names,
            False,
            0,
            logger,
            root=Path(files[0]).parent if files else Path.cwd(),
            point_cloud_range=settings["POINT_CLOUD_RANGE"],
            point_feature_encoding=settings["POINT_FEATURE_ENCODING"],
            data_augmentor=None,
            data_processor=settings["DATA_PROCESSOR"],
        )
        self.files = [Path(f) for f in files]
        self.layout = cloud_layout(settings["POINT_FEATURE_ENCODING"])
        self.ground = ground
        self.intensity_scale = float(settings.get("INTENSITY_SCALE", 1.0))

    def __len__(self) -> int:
        return len(self.files)

    def load_scene(self, index: int) -> Scene:
        """The cloud of file ``index``; what is odd about it is logged."""
        return self.read_scene(self.files[index])

    def read_scene(self, path: Path) -> Scene:
        """The cloud of any file; what is odd about it is logged."""
        points, dropped = read_points(path, self.layout)
        return self.scene_of(points, stem_of(path), str(path), dropped)

    def scene_of(self, points: np.ndarray, name: str, where: str, dropped: int = 0) -> Scene:
        """A scene of (N, C) finite points with the source features; what is odd about it is logged after ``where``.

        The array is not changed.
        """
        if dropped:
            self.logger.warning("%s: %d points are NaN or infinite and were dropped", where, dropped)
        doubts = fit_doubts(points, self.point_cloud_range, self.ground)
        if "intensity" in self.source_features:
            column = self.source_features.index("intensity")
            points = points.copy()
            points[:, column] *= self.intensity_scale
            doubts = cloud_doubts(points[:, [0, 1, 2, column]]) + doubts
        for doubt in doubts:
            self.logger.warning("%s: %s", where, doubt)
        return Scene(name, points)
