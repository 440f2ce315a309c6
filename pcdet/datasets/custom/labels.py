"""Labels of own data: rows of a file, checked and turned into LiDAR boxes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pcdet.structures.box_convention import BoxConvention
from pcdet.structures.boxes import wrap_angle

DONT_CARE = "DontCare"
MOST_TURNS = 2.001 * np.pi  # headings beyond are wrapped like others, but are probably degrees
MOST_TILT = 0.05  # radians about x or y that are passed over in silence


class LabelRow(NamedTuple):
    """One labelled object as the file has it."""

    place: str  # file:line, or file and object
    name: str
    box: tuple[float, ...]  # seven numbers in the file's convention
    tilt: tuple[float, float] = (0.0, 0.0)  # turns about x and y, in the heading's unit


class Labels(NamedTuple):
    """The usable objects of a frame, and what was wrong with others."""

    names: np.ndarray  # (M,) str
    boxes: np.ndarray  # (M, 7) float64 LiDAR boxes
    complaints: list[str]  # one for each object left out, with its place
    wide: list[str]  # places of headings beyond a full turn
    tilted: list[str]  # places of boxes that are turned about x or y too


def usable(rows: Sequence[LabelRow], convention: BoxConvention, class_map: Mapping[str, str | None]) -> Labels:
    """The objects that can be learned from, renamed by ``class_map`` (to ``None``: left out) and converted.

    Left out with a complaint are objects with a value that is not finite or a size that is not positive, and repeats
    of an earlier object of the same name.
    """
    names, boxes, complaints, wide, tilted = [], [], [], [], []
    seen: dict[tuple, str] = {}
    turn = MOST_TURNS if convention.unit == "rad" else np.inf
    for row in rows:
        name = class_map.get(row.name, row.name)
        if name is None or name == DONT_CARE:
            continue
        if not set("/\\").isdisjoint(name):
            raise ValueError(f"{row.place}: '{name}' cannot be a class name, files are named after it")
        fault = fault_of(row, seen.get((name, row.box)))
        if fault:
            complaints.append(f"{row.place}: {name} left out, {fault}")
            continue
        seen[name, row.box] = row.place
        wide += [row.place] if abs(row.box[6]) > turn else []
        tilted += [row.place] if is_tilted(row, convention) else []
        names.append(name)
        boxes.append(row.box)
    array = np.array(boxes, dtype=np.float64).reshape(-1, 7)
    return Labels(np.array(names, dtype=np.str_), convention.to_lidar(array), complaints, wide, tilted)


def is_tilted(row: LabelRow, convention: BoxConvention) -> bool:
    """Does the box lean noticeably?"""
    tilt = np.deg2rad(row.tilt) if convention.unit == "deg" else np.array(row.tilt)
    return bool((np.abs(wrap_angle(tilt)) > MOST_TILT).any())


def fault_of(row: LabelRow, earlier: str | None) -> str | None:
    """Why an object cannot be used, or ``None``."""
    if not np.isfinite(row.box).all():
        return "a value is not finite"
    if min(row.box[3:6]) <= 0:
        return f"its size is {' x '.join(f'{v:g}' for v in row.box[3:6])}"
    if earlier is not None:
        return f"it repeats {earlier}"
    return None
