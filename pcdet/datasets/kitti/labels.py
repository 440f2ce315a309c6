"""KITTI label files: one object a line, in the camera's frame."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcdet.utils.files import read_text

DONT_CARE = "DontCare"
DIFFICULTIES = ("easy", "moderate", "hard")
# Smallest height in pixels, largest truncation and largest occlusion level of each difficulty (KITTI's devkit).
_LIMITS = ((40.0, 0.15, 0), (25.0, 0.30, 1), (25.0, 0.50, 2))


@dataclass(frozen=True)
class LabelObject:
    """One line of a label file; metres, radians, pixels, in the rectified camera frame."""

    name: str
    truncated: float  # 0 to 1; -1 for DontCare
    occluded: float  # 0 visible, 1 partly, 2 largely, 3 unknown; -1 for DontCare
    alpha: float
    bbox: tuple[float, float, float, float]  # x1 y1 x2 y2
    height: float
    width: float
    length: float
    location: tuple[float, float, float]  # x y z of the bottom centre
    rotation_y: float
    score: float = -1.0

    @property
    def difficulty(self) -> int:
        """0 easy, 1 moderate, 2 hard, -1 beyond."""
        pixels = self.bbox[3] - self.bbox[1] + 1
        for level, (height, truncation, occlusion) in enumerate(_LIMITS):
            if pixels >= height and self.truncated <= truncation and self.occluded <= occlusion:
                return level if self.name != DONT_CARE else -1
        return -1

    @property
    def fault(self) -> str | None:
        """Why this object cannot be learned from, or ``None``."""
        if self.name == DONT_CARE:
            return None
        sizes = (self.length, self.width, self.height)
        if not np.isfinite((*sizes, *self.location, self.rotation_y, *self.bbox)).all():
            return "a value is not finite"
        if min(sizes) <= 0:
            return f"its size (l, w, h) is {sizes}"
        return None


def parse_line(line: str, place: str) -> LabelObject:
    """One label line. Raises ``ValueError`` naming ``place`` (file:line) unless it has 15 or 16 proper fields."""
    fields = line.split()
    if len(fields) not in (15, 16):
        raise ValueError(f"{place}: a KITTI label has 15 fields (16 with a score), this line has {len(fields)}")
    if not set("/\\").isdisjoint(fields[0]):
        raise ValueError(f"{place}: '{fields[0]}' cannot be a class name, files are named after it")
    try:
        v = [float(x) for x in fields[1:]]
    except ValueError as error:
        raise ValueError(f"{place}: {error}; every field after the class name is a number") from error
    score = v[14] if len(v) == 15 else -1.0
    return LabelObject(fields[0], v[0], v[1], v[2], tuple(v[3:7]), v[7], v[8], v[9], tuple(v[10:13]), v[13], score)


def read_labels(path: str | Path) -> tuple[list[LabelObject], list[str]]:
    """The usable objects of a label file, DontCare last, and one complaint for each object left out.

    Objects with a size that is not positive, or values that are not finite, are left out: no box encoder can take
    them. Raises ``FileNotFoundError``, or ``ValueError`` naming file and line for a malformed line.
    """
    objects, complaints = [], []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        item = parse_line(line, place)
        if item.fault is None:
            objects.append(item)
        else:
            complaints.append(f"{place}: {item.name} left out, {item.fault}")
    return sorted(objects, key=lambda o: o.name == DONT_CARE), complaints


def to_annos(objects: Iterable[LabelObject]) -> dict[str, np.ndarray]:
    """Objects as the arrays of an info's ``annos`` (OpenPCDet's schema and dtypes), DontCare last."""
    rows = [dataclasses.astuple(o) for o in objects]
    names = [r[0] for r in rows]
    cared = sum(n != DONT_CARE for n in names)
    return {
        "name": np.array(names, dtype=f"<U{max(map(len, names), default=1)}"),
        "truncated": np.array([r[1] for r in rows], dtype=np.float64),
        "occluded": np.array([r[2] for r in rows], dtype=np.float64),
        "alpha": np.array([r[3] for r in rows], dtype=np.float64),
        "bbox": np.array([r[4] for r in rows], dtype=np.float32).reshape(-1, 4),
        "dimensions": np.array([(r[7], r[5], r[6]) for r in rows], dtype=np.float64).reshape(-1, 3),  # l h w
        "location": np.array([r[8] for r in rows], dtype=np.float32).reshape(-1, 3),
        "rotation_y": np.array([r[9] for r in rows], dtype=np.float64),
        "score": np.array([r[10] for r in rows], dtype=np.float64),
        "difficulty": np.array([o.difficulty for o in objects], dtype=np.int32),
        "index": np.array([*range(cared), *[-1] * (len(rows) - cared)], dtype=np.int32),
    }


def camera_boxes(annos: dict[str, np.ndarray]) -> np.ndarray:
    """(M, 7) KITTI camera boxes of an ``annos``: x y z of the bottom centre, l h w, rotation_y."""
    return np.concatenate([annos["location"], annos["dimensions"], annos["rotation_y"][:, None]], axis=1)


def without_dont_care(annos: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of every per-object array whose name is not DontCare."""
    keep = annos["name"] != DONT_CARE
    return {k: v[keep] if len(v) == len(keep) else v for k, v in annos.items() if k != "gt_boxes_lidar"}
