"""What is known of each frame of own data, gathered once: ``custom_infos_*.pkl`` in OpenPCDet's schema."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from pcdet.datasets.custom.folder import SPLITS
from pcdet.datasets.custom.reading import CustomReader
from pcdet.datasets.dataset import find_data_path
from pcdet.datasets.object_database import FrameObjects, Index, write_database
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.utils.files import write_pickle
from pcdet.utils.logging import get_logger

INFOS = "custom_infos_{}.pkl"
DATABASE = "custom_dbinfos_train.pkl"


class FrameResult(NamedTuple):
    """One frame's info and what was noticed on the way."""

    info: dict[str, Any]
    points: int
    dropped_points: int
    complaints: list[str]
    wide: list[str]
    tilted: list[str]


def create_infos(
    settings: Mapping[str, Any], data_path: str | Path | None = None, save_path: str | Path | None = None
) -> str:
    """Write ``custom_infos_{train,val,test}.pkl``, ``custom_dbinfos_train.pkl`` and ``gt_database/``.

    ``settings`` is a DATA_CONFIG; ``data_path`` replaces its DATA_PATH. A split is skipped, with a notice, if
    ``ImageSets`` does not list it. Files are written once every frame was read, each as a whole. They go into
    ``data_path`` unless ``save_path`` is given. Returns a table of counts. Raises ``FileNotFoundError`` or
    ``ValueError`` naming the file (and line) at fault.
    """
    reader = CustomReader.from_settings(find_data_path(data_path or settings["DATA_PATH"]), settings)
    target = Path(save_path) if save_path is not None else reader.folder.root
    results = read_splits(reader)
    for split, rows in results.items():
        write_pickle(target / INFOS.format(split), [r.info for r in rows])
    warn_of(results)
    database: Index = {}
    if "train" in results:
        frames = [frame_objects(r.info) for r in results["train"]]
        database = write_database(frames, lambda frame: reader.points(frame)[0], target, DATABASE)
    return counts_table(results, database)


def read_splits(reader: CustomReader) -> dict[str, list[FrameResult]]:
    """The frames of every split that is listed, with a progress bar; a frame in two splits is read once."""
    folder = reader.folder
    present = [s for s in SPLITS if folder.split_file(s).is_file()]
    if not present:
        places = ", ".join(f"{s}.txt" for s in SPLITS)
        raise FileNotFoundError(
            f"{folder.root / 'ImageSets'} holds none of {places}; a data set has 'points', 'labels' and 'ImageSets'"
        )
    for split in ("train", "val"):
        if split not in present:
            get_logger().warning("%s is absent: no infos for the split '%s'", folder.split_file(split), split)
    known: dict[tuple[str, bool], FrameResult] = {}
    results: dict[str, list[FrameResult]] = {}
    for split in present:
        results[split], lines = [], folder.frames(split)
        for frame, line in tqdm(lines.items(), f"infos {split}", unit="frame", dynamic_ncols=True, disable=None):
            key = frame, split != "test"
            if key not in known:
                known[key] = frame_result(reader, split, frame, f"{folder.split_file(split)}:{line}")
            results[split].append(known[key])
    return results


def frame_result(reader: CustomReader, split: str, frame_id: str, listed: str) -> FrameResult:
    """Read a frame's files; ``listed`` is the line that names the frame."""
    try:
        points, dropped = reader.points(frame_id)
        labels = reader.labels(frame_id) if split != "test" else None
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}\nIt is wanted by {listed}") from error
    info = {"point_cloud": {"num_features": len(reader.features), "lidar_idx": frame_id}}
    if labels is None:
        return FrameResult(info, len(points), dropped, [], [], [])
    inside = points_in_boxes_mask(points[:, :3].astype(np.float64), labels.boxes).sum(axis=1)  # (M,)
    info["annos"] = {
        "name": labels.names,
        "gt_boxes_lidar": labels.boxes,
        "num_points_in_gt": inside.astype(np.int32),
    }
    return FrameResult(info, len(points), dropped, labels.complaints, labels.wide, labels.tilted)


def frame_objects(info: dict[str, Any]) -> FrameObjects:
    """The objects of a frame's info as the database takes them."""
    annos = info["annos"]
    return FrameObjects(info["point_cloud"]["lidar_idx"], annos["name"], annos["gt_boxes_lidar"], {})


def warn_of(results: Mapping[str, Iterable[FrameResult]]) -> None:
    """One warning for each object left out, for headings that are no radians, and for frames in two splits."""
    logger = get_logger()
    frames = list({id(r): r for rows in results.values() for r in rows}.values())
    for complaint in (c for r in frames for c in r.complaints):
        logger.warning("%s", complaint)
    wide = [place for r in frames for place in r.wide]
    if wide:
        logger.warning(
            "%d headings are more than a full turn, such as at %s: are they degrees? Then set BOX_CONVENTION "
            "{unit: deg}; now they are taken as radians",
            len(wide),
            wide[0],
        )
    tilted = [place for r in frames for place in r.tilted]
    if tilted:
        logger.warning(
            "%d boxes, such as that at %s, are turned about x or y too; they are taken as upright",
            len(tilted),
            tilted[0],
        )
    names = {s: {r.info["point_cloud"]["lidar_idx"] for r in rows} for s, rows in results.items()}
    shared = sorted(names.get("train", set()) & (names.get("val", set()) | names.get("test", set())))
    if shared:
        logger.warning(
            "%d frames of 'train', such as %s, are in 'val' or 'test' too: results on them say nothing about new data",
            len(shared),
            shared[0],
        )


def counts_table(results: Mapping[str, list[FrameResult]], database: Index) -> str:
    """The closing table: objects of each class with points and mean sizes, points a frame, the database's objects."""
    layout = "{:<6} {:<16} {:>8} {:>10} {:>14} {:>20}"
    lines = [layout.format("split", "class", "objects", "no points", "points/object", "mean l x w x h (m)")]
    for split, rows in results.items():
        for name, boxes, points in objects_by_class(rows):
            sizes = " x ".join(f"{v:.2f}" for v in boxes[:, 3:6].mean(axis=0))
            lines.append(layout.format(split, name, len(boxes), (points == 0).sum(), f"{points.mean():.1f}", sizes))
        dropped = sum(r.dropped_points for r in rows)
        mean = sum(r.points for r in rows) / max(len(rows), 1)
        empty = sum("annos" in r.info and not len(r.info["annos"]["name"]) for r in rows)
        tail = f", {empty} without objects" if empty else ""
        tail += f", {dropped} NaN or infinite points dropped" if dropped else ""
        lines.append(f"{split:<6} {len(rows)} frames, {mean:.0f} points a frame{tail}")
    if database:
        lines.append("gt_database: " + ", ".join(f"{name} {len(rows)}" for name, rows in sorted(database.items())))
    return "\n".join(lines)


def objects_by_class(rows: Iterable[FrameResult]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, boxes (M, 7) and point counts (M,) of each class, by name."""
    annos = [r.info["annos"] for r in rows if "annos" in r.info]
    if not annos:
        return []
    names, boxes, points = (
        np.concatenate([a[key] for a in annos]) for key in ("name", "gt_boxes_lidar", "num_points_in_gt")
    )
    return [(str(name), boxes[names == name], points[names == name]) for name in np.unique(names)]
