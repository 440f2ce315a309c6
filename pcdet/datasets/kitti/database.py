"""The points of every labelled object, cut out for gt_sampling: ``gt_database/`` and ``kitti_dbinfos_train.pkl``."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from pcdet.datasets.clouds import read_cloud
from pcdet.datasets.kitti.folder import KittiFolder
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.utils.files import write_pickle

# Labelled boxes are tight: OpenPCDet, too, takes the points up to 1 cm beyond their sides into its database.
MARGIN = 1e-2
FOLDER = "gt_database"


def write_database(folder: KittiFolder, infos: list[dict], target: Path) -> dict[str, list[dict[str, Any]]]:
    """Write the database of the training split's objects below ``target`` and return its index by class.

    A file is float32 (n, 4): x y z relative to the box's centre, not rotated, then intensity. The new folder takes the
    old one's place only when it is complete.
    """
    target.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", dir=target))
    fresh.chmod(0o755)
    database: dict[str, list[dict[str, Any]]] = {}
    try:
        for info in tqdm(infos, desc="gt database", unit="frame", dynamic_ncols=True, disable=None):
            for row in frame_objects(folder, info, fresh):
                database.setdefault(row["name"], []).append(row)
        swap_folder(fresh, target / FOLDER)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    write_pickle(target / "kitti_dbinfos_train.pkl", database)
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


def frame_objects(folder: KittiFolder, info: dict, into: Path) -> list[dict[str, Any]]:
    """Write a frame's objects into the folder ``into``; their rows of the index."""
    frame_id, annos = info["point_cloud"]["lidar_idx"], info["annos"]
    boxes = annos["gt_boxes_lidar"]
    if len(boxes) == 0:
        return []
    points, _ = read_cloud(folder.cloud_path("train", frame_id))
    inside = points_in_boxes_mask(points[:, :3], boxes.astype(np.float32), margin=MARGIN)  # (M, N)
    rows = []
    for i, box in enumerate(boxes):
        name = str(annos["name"][i])
        own = points[inside[i]]
        own[:, :3] -= box[:3]
        file_name = f"{frame_id}_{name}_{i}.bin"
        own.tofile(into / file_name)
        rows.append(
            {
                "name": name,
                "path": f"{FOLDER}/{file_name}",
                "image_idx": frame_id,
                "gt_idx": i,
                "box3d_lidar": box,
                "num_points_in_gt": len(own),
                "difficulty": annos["difficulty"][i],
                "bbox": annos["bbox"][i],
                "score": float(annos["score"][i]),
            }
        )
    return rows
