"""The formats of labels: how each is read into rows."""

import csv
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pcdet.datasets.cloud_formats import stem_of
from pcdet.datasets.custom.folder import CustomFolder
from pcdet.datasets.custom.labels import LabelRow
from pcdet.datasets.kitti.labels import LabelObject, parse_line
from pcdet.structures.boxes import boxes_from_kitti_camera
from pcdet.structures.calibration import Calibration
from pcdet.utils.files import read_text
from pcdet.utils.registry import nearest


class Parsed(NamedTuple):
    """The rows of a frame, and what could not be read."""

    rows: list[LabelRow]
    faults: list[str]  # one for each line or object that has no proper form, with its place


class LabelFormat(NamedTuple):
    """One format: its reader, and what BOX_CONVENTION is where the YAML does not say."""

    read: Callable[[CustomFolder, str], Parsed]
    convention: Mapping[str, Any] = {}
    has_own_convention: bool = False  # BOX_CONVENTION says nothing then


def parse_each(items: Iterable[tuple[str, Any]], parse: Callable[[str, Any], LabelRow]) -> Parsed:
    """Parse every (place, item); a ``ValueError`` of ``parse`` is a fault and the rest is still read."""
    rows, faults = [], []
    for place, item in items:
        try:
            rows.append(parse(place, item))
        except ValueError as error:
            faults.append(str(error))
    return Parsed(rows, faults)


def lines_of(path: Path) -> Iterable[tuple[str, str]]:
    """``file:line`` and text of each line with content. Raises ``FileNotFoundError``, ``ValueError`` if not text."""
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        if line.strip():
            yield f"{path}:{number}", line


def text_of(path: Path) -> str:
    """A label file's text. Raises ``FileNotFoundError`` that says what an empty scene looks like."""
    if not path.is_file():
        raise FileNotFoundError(f"The labels {path} are missing; a frame without objects has an empty file")
    return read_text(path)


def numbers(fields: Sequence[str], place: str, what: str) -> tuple[float, ...]:
    """Fields as numbers. Raises ``ValueError`` naming the place and the first field that is none."""
    try:
        return tuple(float(field) for field in fields)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: {error}; {what}") from error


def read_openpcdet(folder: CustomFolder, frame_id: str) -> Parsed:
    """``labels/<frame>.txt`` with lines ``x y z dx dy dz heading class``."""
    return parse_each(lines_of(folder.label_path(frame_id)), openpcdet_row)


def openpcdet_row(place: str, line: str) -> LabelRow:
    """One line of OpenPCDet's format."""
    fields = line.split()
    if len(fields) != 8:
        raise ValueError(f"{place}: a label is 'x y z dx dy dz heading class', 8 fields; this line has {len(fields)}")
    return LabelRow(place, fields[7], numbers(fields[:7], place, "seven numbers stand before the class's name"))


def read_kitti(folder: CustomFolder, frame_id: str) -> Parsed:
    """``labels/<frame>.txt`` in KITTI's format, boxes in the camera's frame of ``calib/<frame>.txt``."""
    path = folder.calib_path(frame_id)
    if not path.is_file():
        raise FileNotFoundError(
            f"The calibration {path} is missing; for boxes in the LiDAR frame in KITTI's format set LABEL_FORMAT "
            "kitti_lidar"
        )
    calib = Calibration.from_file(path)

    def row(place: str, line: str) -> LabelRow:
        return LabelRow(place, *camera_row(parse_line(line, place), calib))

    return parse_each(lines_of(folder.label_path(frame_id)), row)


def camera_row(item: LabelObject, calib: Calibration) -> tuple[str, tuple[float, ...]]:
    """Name and LiDAR box of an object in the camera's frame."""
    camera = np.array([[*item.location, item.length, item.height, item.width, item.rotation_y]])
    return item.name, tuple(boxes_from_kitti_camera(camera, calib)[0].tolist())


def read_kitti_lidar(folder: CustomFolder, frame_id: str) -> Parsed:
    """KITTI's lines with x y z, h w l and the heading given in the LiDAR frame, as tools write without calibration."""

    def row(place: str, line: str) -> LabelRow:
        item = parse_line(line, place)
        return LabelRow(place, item.name, (*item.location, item.length, item.width, item.height, item.rotation_y))

    return parse_each(lines_of(folder.label_path(frame_id)), row)


def read_labelcloud(folder: CustomFolder, frame_id: str) -> Parsed:
    """``labels/<frame>.json`` of labelCloud: ``objects`` with ``centroid``, ``dimensions`` and ``rotations``."""
    path = folder.label_path(frame_id, ".json")
    text = text_of(path)
    if not text.strip():
        return Parsed([], [])
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        return Parsed([], [f"{path}:{error.lineno} is not JSON: {error.msg}"])
    objects = content.get("objects") if isinstance(content, dict) else None
    if not isinstance(objects, list):
        return Parsed([], [f"{path} is not labelCloud's JSON, which has a list 'objects'"])
    places = [(f"{path}, object {i}", item) for i, item in enumerate(objects, start=1)]
    return parse_each(places, labelcloud_row)


def labelcloud_row(place: str, item: Any) -> LabelRow:
    """One object of labelCloud's ``centroid`` formats."""
    try:
        values = [item["centroid"][k] for k in "xyz"]
        values += [item["dimensions"][k] for k in ("length", "width", "height")]
        turns = [item["rotations"][k] for k in "xyz"]
        name = str(item["name"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{place} lacks {error}; an object has name, centroid {{x, y, z}}, dimensions {{length, width, height}} "
            "and rotations {x, y, z}"
        ) from error
    what = "centroid, dimensions and rotations are numbers"
    *box, tilt_x, tilt_y, heading = numbers([*values, *turns], place, what)
    return LabelRow(place, name, (*box, heading), (tilt_x, tilt_y))


# Column of a box -> names that a CSV may give it, compared without case.
CSV_COLUMNS: dict[str, tuple[str, ...]] = {
    "x": ("x", "cx", "center_x", "centre_x"),
    "y": ("y", "cy", "center_y", "centre_y"),
    "z": ("z", "cz", "center_z", "centre_z"),
    "dx": ("dx", "length", "l"),
    "dy": ("dy", "width", "w"),
    "dz": ("dz", "height", "h"),
    "heading": ("heading", "yaw", "rotation", "rotation_z", "rz"),
    "class": ("class", "name", "label", "type", "category"),
}
CSV_FRAME = ("frame", "frame_id", "file", "filename", "sample")


def read_csv(folder: CustomFolder, frame_id: str) -> Parsed:
    """``labels/<frame>.csv``, or ``labels.csv`` of all frames with a column ``frame``; the first line names columns."""
    whole = folder.root / "labels.csv"
    if whole.is_file():
        return parse_each(csv_frames(whole, whole.stat().st_mtime_ns).get(frame_id, ()), csv_row)
    return parse_each(csv_items(folder.label_path(frame_id, ".csv"), CSV_COLUMNS), csv_row)


@functools.lru_cache(maxsize=4)
def csv_frames(path: Path, modified: int) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """Frame -> (place, fields) of a CSV of all frames, kept until the file is ``modified``.

    The column ``frame`` may hold names of cloud files. Raises ``ValueError`` naming a line without a frame.
    """
    frames: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for place, fields in csv_items(path, {**CSV_COLUMNS, "frame": CSV_FRAME}):
        if not fields["frame"]:
            raise ValueError(f"{place}: the frame is empty")
        frames.setdefault(stem_of(Path(fields["frame"]).name), []).append((place, fields))
    return frames


def csv_items(path: Path, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, dict[str, str]]]:
    """(place, column -> field) of each line. Raises ``ValueError`` naming the columns that are missing."""
    lines = text_of(path).splitlines()
    if not any(line.strip() for line in lines):
        return []
    delimiter = next((mark for mark in ",;\t" if mark in lines[0]), ",")
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    header = [name.strip().lower() for name in next(reader)]
    at = {key: next((header.index(n) for n in names if n in header), None) for key, names in columns.items()}
    missing = [" or ".join(columns[key][:2]) for key, column in at.items() if column is None]
    if missing:
        raise ValueError(f"{path}:1: no column is called {', '.join(missing)}; there are {', '.join(header)}")
    items = []
    for fields in reader:
        if any(f.strip() for f in fields):
            row = {key: fields[i].strip() if i < len(fields) else "" for key, i in at.items()}
            items.append((f"{path}:{reader.line_num}", row))
    return items


def csv_row(place: str, fields: Mapping[str, str]) -> LabelRow:
    """One line of a CSV."""
    keys = ("x", "y", "z", "dx", "dy", "dz", "heading")
    box = numbers([fields[key] for key in keys], place, f"{', '.join(keys)} are numbers")
    if not fields["class"]:
        raise ValueError(f"{place}: the class is empty")
    return LabelRow(place, fields["class"], box)


LABEL_FORMATS: dict[str, LabelFormat] = {
    "openpcdet": LabelFormat(read_openpcdet),
    "kitti": LabelFormat(read_kitti, has_own_convention=True),
    "kitti_lidar": LabelFormat(read_kitti_lidar),
    # labelCloud writes degrees unless it is told to write relative rotations.
    "labelcloud": LabelFormat(read_labelcloud, {"unit": "deg"}),
    "csv": LabelFormat(read_csv),
}


def label_format(name: str) -> LabelFormat:
    """The format of this name. Raises ``ValueError`` with the known ones."""
    if name not in LABEL_FORMATS:
        raise ValueError(f"LABEL_FORMAT '{name}' is not known.{nearest(name, LABEL_FORMATS)}")
    return LABEL_FORMATS[name]
