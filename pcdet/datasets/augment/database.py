"""The cut-out objects that gt_sampling pastes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.augment.registry import AugmentContext
from pcdet.datasets.whole_clouds.packs import Cloud, Pack, packed
from pcdet.structures.boxes import wrap_angle
from pcdet.utils.files import read_pickle

Rows = list[dict[str, Any]]


def read_index(context: AugmentContext, files: Sequence[str]) -> dict[str, Rows]:
    """Class -> rows of the database's index. An absent file causes one warning."""
    index: dict[str, Rows] = {}
    for name in files:
        path = context.root / name
        if not path.is_file():
            context.logger.warning("gt_sampling: %s (DB_INFO_PATH) is absent, nothing is pasted from it", path)
            continue
        for class_name, rows in read_pickle(path).items():
            index.setdefault(str(class_name), []).extend(rows)
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


def pack_objects(
    context: AugmentContext, files: Sequence[str], index: Mapping[str, Rows], num_point_features: int
) -> Pack:
    """The clouds of all objects of the index in one array, mapped into memory, so that processes share it.

    ``files`` are the index files. The object files stay as they are; the array is a copy in the data set's cache folder
    (:func:`pcdet.datasets.whole_clouds.packs.packed`), or in memory where none can be written to. Listed files that are
    absent are left out. Raises ``ValueError`` naming a file whose size does not fit.
    """
    paths = {context.root / row["path"]: row["path"] for rows in index.values() for row in rows}
    present = [path for path in paths if path.is_file()]

    def read(path: Path) -> list[Cloud]:
        return [Cloud(paths[path], read_object(path, num_point_features), 0)]

    if present:
        name = "-".join(["objects", *(Path(f).stem for f in files), str(num_point_features)])
        try:
            return packed(name, present, read, context.root, context.logger, [num_point_features])
        except OSError as error:
            context.logger.warning("gt_sampling: the database's objects are read into memory: %s", error)
    clouds = [cloud for path in present for cloud in read(path)]
    return Pack(
        np.concatenate([np.zeros((0, num_point_features), np.float32), *(c.points for c in clouds)]),
        np.cumsum([0, *(len(c.points) for c in clouds)]),
        np.zeros(len(clouds), np.int64),
        tuple(c.name for c in clouds),
    )


def read_object(path: Path, num_point_features: int) -> np.ndarray:
    """(n, C) float32 points of an object's file. Raises ``ValueError`` naming it where its size does not fit."""
    values = np.fromfile(path, dtype=np.float32)
    if values.size % num_point_features:
        raise ValueError(
            f"{path} holds {values.size} numbers, which are not rows of {num_point_features} (NUM_POINT_FEATURES)"
        )
    return values.reshape(-1, num_point_features)


class ObjectDatabase:
    """The objects of an index by class: their boxes, and their places among the clouds of ``pack``.

    Raises ``FileNotFoundError`` naming a file that the index lists and ``pack`` was made without.
    """

    def __init__(self, pack: Pack, root: Path, index: Mapping[str, Rows], fake_lidar: bool):
        self.pack = pack
        self.boxes = {c: stack_boxes(rows, fake_lidar) for c, rows in index.items()}
        places = {name: i for i, name in enumerate(pack.names)}
        for row in (r for rows in index.values() for r in rows):
            if row["path"] not in places:
                raise FileNotFoundError(
                    f"{root / row['path']} is missing though the database's index lists it: run tools/create_data.py "
                    "again"
                )
        self.places = {c: np.array([places[r["path"]] for r in rows], dtype=np.int64) for c, rows in index.items()}

    def __len__(self) -> int:
        return sum(len(boxes) for boxes in self.boxes.values())

    def points(self, objects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Points relative to the centres of objects (K,), given by their ``places``.

        -> a new (n, C) float32 array, one object after the other, and the points of each, (K,).
        """
        first, counts = self.pack.offsets[objects], np.diff(self.pack.offsets)[objects]
        start = np.cumsum(counts) - counts
        rows = np.repeat(first - start, counts) + np.arange(counts.sum())
        return np.asarray(self.pack.points).take(rows, axis=0), counts


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
