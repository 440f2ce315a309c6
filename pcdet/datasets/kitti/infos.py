"""What is known of each KITTI frame, gathered once: ``kitti_infos_*.pkl`` in OpenPCDet's schema."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from pcdet.datasets.clouds import read_cloud
from pcdet.datasets.kitti.folder import POINT_FEATURES, SPLITS, KittiFolder, in_camera_view
from pcdet.datasets.kitti.labels import DIFFICULTIES, DONT_CARE, camera_boxes, read_labels, to_annos, without_dont_care
from pcdet.datasets.object_database import FrameObjects, write_database
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.structures.boxes import boxes_from_kitti_camera
from pcdet.structures.calibration import Calibration
from pcdet.utils.files import write_pickle
from pcdet.utils.logging import get_logger


class FrameResult(NamedTuple):
    """One frame's info and what was noticed on the way."""

    info: dict[str, Any]
    points: int
    dropped_points: int
    complaints: list[str]
    has_image: bool
    has_plane: bool


def calib_info(calib: Calibration) -> dict[str, np.ndarray]:
    """The three matrices as (4, 4), with OpenPCDet's dtypes."""
    p2, velo_to_cam = np.eye(4), np.eye(4)
    p2[:3], velo_to_cam[:3] = calib.P2, calib.V2C
    rectify = np.eye(4, dtype=np.float32)
    rectify[:3, :3] = calib.R0
    return {"P2": p2, "R0_rect": rectify, "Tr_velo_to_cam": velo_to_cam}


def calib_from_info(calib: dict[str, np.ndarray]) -> Calibration:
    """The inverse of :func:`calib_info`."""
    return Calibration(
        np.asarray(calib["P2"][:3], dtype=np.float32),
        np.asarray(calib["R0_rect"][:3, :3], dtype=np.float32),
        np.asarray(calib["Tr_velo_to_cam"][:3], dtype=np.float32),
    )


def frame_info(folder: KittiFolder, split: str, frame_id: str) -> FrameResult:
    """Read a frame's files. Raises ``ValueError`` or ``FileNotFoundError`` naming the file (and line) at fault."""
    calib = folder.calib(split, frame_id)
    shape, has_image = folder.image_shape(split, frame_id, calib)
    points, dropped = read_cloud(folder.cloud_path(split, frame_id))
    info: dict[str, Any] = {
        "point_cloud": {"num_features": len(POINT_FEATURES), "lidar_idx": frame_id},
        "image": {"image_idx": frame_id, "image_shape": shape},
        "calib": calib_info(calib),
    }
    complaints: list[str] = []
    if split != "test":
        label_path = folder.label_path(split, frame_id)
        if not label_path.is_file():
            raise FileNotFoundError(f"{label_path} is missing, but {folder.split_file(split)} lists frame {frame_id}")
        objects, complaints = read_labels(label_path)
        visible = points[in_camera_view(points, calib, shape)]
        info["annos"] = labelled(to_annos(objects), visible, calib)
    has_plane = split == "test" or folder.road_plane(split, frame_id) is not None
    return FrameResult(info, len(points), dropped, complaints, has_image, has_plane)


def labelled(annos: dict[str, np.ndarray], visible: np.ndarray, calib: Calibration) -> dict[str, np.ndarray]:
    """Add ``gt_boxes_lidar`` (M, 7), without DontCare, and ``num_points_in_gt`` (N,), -1 for DontCare.

    Counted are the points (P, 3+) that the camera sees, in the closed box.
    """
    cared = without_dont_care(annos)
    boxes = boxes_from_kitti_camera(camera_boxes(cared), calib)
    counts = np.full(len(annos["name"]), -1, dtype=np.int32)
    counts[: len(boxes)] = points_in_boxes_mask(visible[:, :3].astype(np.float64), boxes).sum(axis=1)
    return {**annos, "gt_boxes_lidar": boxes, "num_points_in_gt": counts}


def read_splits(folder: KittiFolder, splits: Iterable[str]) -> dict[str, list[FrameResult]]:
    """The frames of each split, in its order, with a progress bar; a frame in two splits is read once."""
    results: dict[str, list[FrameResult]] = {}
    known: dict[tuple[Path, str], FrameResult] = {}
    for split in splits:
        results[split] = []
        for frame_id in tqdm(
            folder.frame_ids(split), desc=f"infos {split}", unit="frame", dynamic_ncols=True, disable=None
        ):
            key = (folder.part(split), frame_id)
            if key not in known:
                known[key] = frame_info(folder, split, frame_id)
            results[split].append(known[key])
    return results


def create_infos(data_path: str | Path, save_path: str | Path | None = None) -> str:
    """Write ``kitti_infos_{train,val,trainval,test}.pkl``, ``kitti_dbinfos_train.pkl`` and ``gt_database/``.

    A split is skipped, with a notice, if ``ImageSets`` does not list it. Every file is replaced as a whole once it is
    complete. They go into ``data_path`` unless ``save_path`` is given. Returns a table of counts. Raises
    ``FileNotFoundError`` or ``ValueError`` naming the file at fault.
    """
    folder = KittiFolder(Path(data_path))
    target = Path(save_path) if save_path is not None else folder.root
    results = read_splits(folder, present_splits(folder))
    for split, rows in results.items():
        write_pickle(target / f"kitti_infos_{split}.pkl", [r.info for r in rows])
    warn_of(folder, results)
    database: dict[str, list[dict]] = {}
    if "train" in results:
        frames = [frame_objects(r.info) for r in results["train"]]
        database = write_database(
            frames, lambda frame: read_cloud(folder.cloud_path("train", frame))[0], target, "kitti_dbinfos_train.pkl"
        )
    return counts_table(results, database)


def frame_objects(info: dict[str, Any]) -> FrameObjects:
    """The objects of a frame's info as the database takes them."""
    frame_id, annos = info["point_cloud"]["lidar_idx"], info["annos"]
    boxes, count = annos["gt_boxes_lidar"], len(annos["gt_boxes_lidar"])
    columns = {
        "image_idx": [frame_id] * count,
        "difficulty": annos["difficulty"],
        "bbox": annos["bbox"],
        "score": [float(v) for v in annos["score"]],
    }
    return FrameObjects(frame_id, annos["name"], boxes, columns)


def present_splits(folder: KittiFolder) -> list[str]:
    """The splits that ``ImageSets`` lists. Raises ``FileNotFoundError`` where there is none."""
    present = [s for s in SPLITS if folder.split_file(s).is_file()]
    if not present:
        places = ", ".join(f"{s}.txt" for s in SPLITS)
        raise FileNotFoundError(f"{folder.root / 'ImageSets'} holds none of {places}; is {folder.root} a KITTI folder?")
    for split in SPLITS:
        if split not in present:
            get_logger().warning("%s is absent: no infos for the split '%s'", folder.split_file(split), split)
    return present


def warn_of(folder: KittiFolder, results: dict[str, list[FrameResult]]) -> None:
    """One warning for each kind of thing that was missing, and one for each object left out."""
    logger = get_logger()
    frames = list({id(r): r for rows in results.values() for r in rows}.values())
    without_image = sum(not r.has_image for r in frames)
    if without_image:
        logger.warning(
            "%d of %d frames have no image in image_2: their image size is taken from the camera's calibration",
            without_image,
            len(frames),
        )
    without_plane = sum(not r.has_plane for r in frames)
    if without_plane:
        logger.warning(
            "%d of %d frames have no road plane in planes: pasted objects keep their own height there",
            without_plane,
            len(frames),
        )
    for complaint in (c for r in frames for c in r.complaints):
        logger.warning("%s", complaint)
    warn_of_unlisted(folder, {f for s in results if s != "test" for f in folder.frame_ids(s)})


def warn_of_unlisted(folder: KittiFolder, listed: set[str]) -> None:
    """Name label files that no image set lists."""
    labels = sorted(p.stem for p in (folder.root / "training" / "label_2").glob("*.txt"))
    outside = [name for name in labels if name not in listed]
    if outside:
        some = ", ".join(outside[:5]) + (" ..." if len(outside) > 5 else "")
        get_logger().warning("%d label files are in no image set and are not used: %s", len(outside), some)


def count_objects(results: Iterable[FrameResult]) -> dict[str, list[int]]:
    """Class -> numbers of easy, moderate, hard and harder objects, then the LiDAR points in all of them."""
    counts: dict[str, list[int]] = {}
    for annos in (r.info["annos"] for r in results if "annos" in r.info):
        rows = zip(annos["name"], annos["difficulty"], annos["num_points_in_gt"], strict=True)
        for name, difficulty, inside in rows:
            if name != DONT_CARE:
                row = counts.setdefault(str(name), [0, 0, 0, 0, 0])
                row[difficulty if difficulty >= 0 else len(DIFFICULTIES)] += 1
                row[-1] += int(inside)
    return counts


def counts_table(results: dict[str, list[FrameResult]], database: dict[str, list[dict]]) -> str:
    """The closing table: objects of each class by difficulty, points a frame, and the database's objects."""
    layout = "{:<9} {:<16} {:>7} {:>9} {:>7} {:>7} {:>14}"
    lines = [layout.format("split", "class", *DIFFICULTIES, "beyond", "points/object")]
    for split, rows in results.items():
        for name, row in sorted(count_objects(rows).items()):
            lines.append(layout.format(split, name, *row[:-1], f"{row[-1] / sum(row[:-1]):.1f}"))
        dropped = sum(r.dropped_points for r in rows)
        mean = sum(r.points for r in rows) / max(len(rows), 1)
        tail = f", {dropped} NaN or infinite points dropped" if dropped else ""
        lines.append(f"{split:<9} {len(rows)} frames, {mean:.0f} points a frame{tail}")
    if database:
        total = ", ".join(f"{name} {len(rows)}" for name, rows in sorted(database.items()))
        lines.append(f"gt_database: {total}")
    return "\n".join(lines)
