"""The points of every labelled object, cut out for gt_sampling: ``gt_database/`` and its index."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.utils.files import write_pickle

# Labelled boxes are tight: OpenPCDet, too, takes the points up to 1 cm beyond their sides into its database.
MARGIN = 1e-2
FOLDER = "gt_database"
Index = dict[str, list[dict[str, Any]]]


class FrameObjects(NamedTuple):
    """The labelled objects of one frame."""

    frame_id: str
    names: Sequence[str]  # (M,)
    boxes: np.ndarray  # (M, 7) LiDAR boxes
    columns: dict[str, Sequence[Any]]  # (M,) each: what else a row of the index tells of its object


def write_database(
    frames: Iterable[FrameObjects], load_points: Callable[[str], np.ndarray], target: Path, index_name: str
) -> Index:
    """Write the objects of all frames below ``target`` and return the index by class, also written as ``index_name``.

    ``load_points`` gives the (N, C) points of a frame. A file is float32 (n, C): x y z relative to the box's centre,
    not rotated, then the other features. The new folder takes the old one's place only when it is complete.
    """
    target.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", dir=target))
    fresh.chmod(0o755)
    database: Index = {}
    try:
        for frame in tqdm(frames, desc="gt database", unit="frame", dynamic_ncols=True, disable=None):
            for row in write_objects(frame, load_points, fresh):
                database.setdefault(row["name"], []).append(row)
        swap_folder(fresh, target / FOLDER)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    write_pickle(target / index_name, database)
    return database


def swap_folder(fresh: Path, place: Path) -> None:
    """Put ``fresh`` where ``place`` is; what was there is removed once the new folder has its name."""
    old = fresh.with_name(f"{fresh.name}.old")
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    if old.is_symlink():
        old.unlink()  # a linked folder is no longer used, but not ours to empty
    shutil.rmtree(old, ignore_errors=True)


def write_objects(frame: FrameObjects, load_points: Callable[[str], np.ndarray], into: Path) -> list[dict[str, Any]]:
    """Write a frame's objects into the folder ``into``; their rows of the index."""
    if len(frame.boxes) == 0:
        return []
    points = load_points(frame.frame_id).astype(np.float32, copy=False)
    inside = points_in_boxes_mask(points[:, :3], frame.boxes.astype(np.float32), margin=MARGIN)  # (M, N)
    rows = []
    for i, box in enumerate(frame.boxes):
        name = str(frame.names[i])
        own = points[inside[i]]
        own[:, :3] -= box[:3]
        file_name = f"{frame.frame_id.replace('/', '_')}_{name.replace('/', '_')}_{i}.bin"
        own.tofile(into / file_name)
        row = {"name": name, "path": f"{FOLDER}/{file_name}", "gt_idx": i, "box3d_lidar": box}
        more = {key: values[i] for key, values in frame.columns.items()}
        rows.append(row | {"num_points_in_gt": len(own)} | more)
    return rows
