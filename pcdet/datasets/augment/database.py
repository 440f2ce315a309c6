"""The cut-out objects that gt_sampling pastes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.augment.registry import AugmentContext
from pcdet.structures.boxes import wrap_angle
from pcdet.utils.files import read_pickle

CACHED_OBJECTS = 20000  # clouds of objects kept in memory; KITTI's database has about as many, 0.1 GB in all

Rows = list[dict[str, Any]]


def read_index(context: AugmentContext, files: Sequence[str]) -> dict[str, Rows]:
    """Class -> rows of the database's index, for the wanted classes. An absent file causes one warning."""
    index: dict[str, Rows] = {name: [] for name in context.class_names}
    for name in files:
        path = context.root / name
        if not path.is_file():
            context.logger.warning("gt_sampling: %s (DB_INFO_PATH) is absent, nothing is pasted from it", path)
            continue
        for class_name, rows in read_pickle(path).items():
            if str(class_name) in index:
                index[str(class_name)] += rows
    return index


def parse_counts(entries: Sequence[str], what: str) -> dict[str, int]:
    """``["Car:5", "Cyclist:3"]`` -> numbers by class. Raises ``ValueError`` for another form."""
    counts = {}
    for entry in entries:
        name, _, number = str(entry).rpartition(":")
        if not name or not number.strip().isdigit():
            raise ValueError(f"gt_sampling: {what} holds '{entry}'; an entry is CLASS:NUMBER, such as Car:5")
        counts[name] = int(number)
    return counts


def filter_by_min_points(index: dict[str, Rows], entries: Sequence[str]) -> dict[str, Rows]:
    """Leave out objects with fewer points than their class's entry, such as ``Car:5``, asks for."""
    least = parse_counts(entries, "PREPARE.filter_by_min_points")
    return {c: [r for r in rows if r["num_points_in_gt"] >= least.get(c, 0)] for c, rows in index.items()}


def filter_by_difficulty(index: dict[str, Rows], levels: Sequence[int]) -> dict[str, Rows]:
    """Leave out objects whose difficulty is one of ``levels``."""
    return {c: [r for r in rows if int(r["difficulty"]) not in levels] for c, rows in index.items()}


FILTERS = {"filter_by_min_points": filter_by_min_points, "filter_by_difficulty": filter_by_difficulty}


def apply_filters(index: dict[str, Rows], settings: Mapping[str, Any], context: AugmentContext) -> dict[str, Rows]:
    """Apply the filters of PREPARE in their order, and say how many objects each leaves."""
    for name, argument in settings.items():
        if name not in FILTERS:
            raise ValueError(f"gt_sampling: PREPARE knows {', '.join(FILTERS)}, not '{name}'")
        before = {c: len(rows) for c, rows in index.items()}
        index = FILTERS[name](index, argument)
        for c, rows in index.items():
            context.logger.info("Database %s %s: %d => %d", name.replace("_", " "), c, before[c], len(rows))
    return index


class ObjectDatabase:
    """Objects by class, with their boxes at hand and their points read when first needed."""

    def __init__(self, root: Path, index: Mapping[str, Rows], num_point_features: int, fake_lidar: bool):
        self.root = root
        self.num_point_features = num_point_features
        self.paths = {c: [r["path"] for r in rows] for c, rows in index.items()}
        self.boxes = {c: stack_boxes(rows, fake_lidar) for c, rows in index.items()}
        self._cache: dict[Path, np.ndarray] = {}

    def __len__(self) -> int:
        return sum(len(paths) for paths in self.paths.values())

    def points(self, class_name: str, number: int) -> np.ndarray:
        """(n, C) float32 points relative to the object's centre; read-only, and kept in memory.

        Raises ``FileNotFoundError``, or ``ValueError`` naming a file whose size does not fit.
        """
        path = self.root / self.paths[class_name][number]
        if path not in self._cache:
            if len(self._cache) >= CACHED_OBJECTS:
                self._cache.pop(next(iter(self._cache)))  # the oldest
            self._cache[path] = self._read(path)
        return self._cache[path]

    def _read(self, path: Path) -> np.ndarray:
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing though the database's index lists it: run tools/create_data.py again"
            )
        values = np.fromfile(path, dtype=np.float32)
        if values.size % self.num_point_features:
            raise ValueError(
                f"{path} holds {values.size} numbers, which are not rows of {self.num_point_features} "
                "(NUM_POINT_FEATURES)"
            )
        points = values.reshape(-1, self.num_point_features)
        points.flags.writeable = False
        return points


def stack_boxes(rows: Rows, fake_lidar: bool) -> np.ndarray:
    """(n, 7) float32 boxes of index rows."""
    boxes = np.array([r["box3d_lidar"][:7] for r in rows], dtype=np.float32).reshape(-1, 7)
    if fake_lidar:
        boxes = from_fake_lidar(boxes)
    boxes[:, 6] = wrap_angle(boxes[:, 6])
    return boxes


def from_fake_lidar(boxes: np.ndarray) -> np.ndarray:
    """Boxes of old databases (x y z of the bottom centre, w l h, clockwise angle from -y) -> LiDAR boxes (M, 7)."""
    width, length, height = boxes[:, 3:4], boxes[:, 4:5], boxes[:, 5:6]
    centre = boxes[:, :3] + np.concatenate([np.zeros_like(boxes[:, :2]), height / 2], axis=1)
    heading = -(boxes[:, 6:7] + np.pi / 2)
    return np.concatenate([centre, length, width, height, heading], axis=1)
