"""What is measured of each frame, once; every check works on these numbers alone."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pcdet.datasets.doubts import ground_height
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.structures.boxes import wrap_angle

# Other readings of a label: what x, y and the heading would be. The first is the label as it stands.
READINGS = (
    "as labelled",
    "turned by 90 degrees",
    "mirrored (clockwise headings)",
    "mirrored and turned by 90 degrees",
    "half their height higher (origin: bottom)",
    "half their height lower (origin: center)",
    "at (y, -x)",
    "at (-y, x)",
    "at (x, -y)",
)


@dataclass(frozen=True)
class FrameFacts:
    """The numbers of one frame."""

    frame: str
    splits: tuple[str, ...]
    digest: str = ""  # of the cloud's file
    points: int = 0
    dropped: int = 0  # not finite
    low: np.ndarray = field(default_factory=lambda: np.zeros(3))  # (3,) 5 % quantiles of x y z
    high: np.ndarray = field(default_factory=lambda: np.zeros(3))  # (3,) 95 % quantiles
    farthest: float = 0.0  # largest coordinate
    intensity: tuple[float, float] | None = None  # least and largest
    ground: float = float("nan")  # height of the ground near the sensor
    in_range: float = 1.0  # share of points in POINT_CLOUD_RANGE
    voxels: int | None = None  # occupied voxels
    crowded: float = 0.0  # share of points beyond MAX_POINTS_PER_VOXEL
    names: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype="<U1"))  # (M,)
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 7)))  # (M, 7)
    inside: np.ndarray = field(default_factory=lambda: np.zeros((0, len(READINGS)), dtype=int))  # (M, R) points
    halves: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=int))  # (M, 2) points below and above

    @property
    def labelled(self) -> bool:
        """Has the frame a box?"""
        return len(self.names) > 0


@dataclass(frozen=True)
class Grid:
    """POINT_CLOUD_RANGE and the voxels of a configuration."""

    limits: np.ndarray  # (6,) metres
    voxel_size: np.ndarray | None = None  # (3,)
    max_points: int | None = None  # of a voxel
    max_voxels: Mapping[str, int] = field(default_factory=dict)  # by mode


def measure(
    frame: str,
    splits: Sequence[str],
    path: Path,
    points: np.ndarray,  # (N, 3+)
    dropped: int = 0,
    names: np.ndarray | None = None,
    boxes: np.ndarray | None = None,
    *,
    intensity_column: int | None = None,
    grid: Grid | None = None,
) -> FrameFacts:
    """The facts of a frame."""
    xyz = points[:, :3].astype(np.float64)
    boxes = np.zeros((0, 7)) if boxes is None else np.asarray(boxes, dtype=np.float64).reshape(-1, 7)
    low, high = np.quantile(xyz, (0.05, 0.95), axis=0) if len(xyz) else (np.zeros(3), np.zeros(3))
    values = points[:, intensity_column] if intensity_column is not None and len(points) else None
    inside_range, voxels, crowded = in_grid(xyz, grid) if grid is not None else (1.0, None, 0.0)
    return FrameFacts(
        frame,
        tuple(splits),
        digest_of(path),
        len(points),
        dropped,
        low,
        high,
        float(np.abs(xyz).max(initial=0)),
        None if values is None else (float(values.min()), float(values.max())),
        ground_height(xyz),
        inside_range,
        voxels,
        crowded,
        np.zeros(0, dtype="<U1") if names is None else np.asarray(names),
        boxes,
        counts_by_reading(xyz, boxes),
        counts_by_half(xyz, boxes),
    )


def digest_of(path: Path) -> str:
    """A digest of a file's bytes."""
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest() if path.is_file() else ""


def in_grid(xyz: np.ndarray, grid: Grid) -> tuple[float, int | None, float]:
    """Share of points in the range, occupied voxels, and share of points that full voxels drop."""
    low, high = grid.limits[:3], grid.limits[3:]
    inside = ((xyz >= low) & (xyz <= high)).all(axis=1)
    share = float(inside.mean()) if len(xyz) else 1.0
    if grid.voxel_size is None:
        return share, None, 0.0
    cells = np.floor((xyz[inside] - low) / grid.voxel_size).astype(np.int64)
    shape = np.ceil((high - low) / grid.voxel_size).astype(np.int64) + 1
    _, counts = np.unique(np.ravel_multi_index(cells.T, shape), return_counts=True) if len(cells) else (None, cells)
    lost = np.maximum(counts - grid.max_points, 0).sum() if grid.max_points and len(cells) else 0
    return share, len(counts), float(lost / max(len(cells), 1))


def counts_by_reading(xyz: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(N, 3), (M, 7) -> (M, R) points inside under each of READINGS, those near the bottom left out: the ground's."""
    counts = np.zeros((len(boxes), len(READINGS)), dtype=np.int64)
    for r, read in enumerate(readings(boxes)):
        if len(boxes) and len(xyz):
            read = read.copy()
            read[:, 2] += 0.1 * read[:, 5]
            read[:, 5] *= 0.8
            counts[:, r] = points_in_boxes_mask(xyz, read, margin=0.02).sum(axis=1)
    return counts


def counts_by_half(xyz: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(N, 3), (M, 7) -> (M, 2) points in as much room below the bottom as above the middle of each box.

    Of boxes in their place the first is below the ground. What lies near the bottom is left out: it is the ground.
    """
    counts = np.zeros((len(boxes), 2), dtype=np.int64)
    for side, middle in enumerate((-0.75, 0.25)):
        if len(boxes) and len(xyz):
            part = boxes.copy()
            part[:, 2] += middle * boxes[:, 5]
            part[:, 5] *= 0.3
            counts[:, side] = points_in_boxes_mask(xyz, part, margin=0.02).sum(axis=1)
    return counts


def readings(boxes: np.ndarray) -> list[np.ndarray]:
    """(M, 7) -> the boxes under each of READINGS."""
    x, y, z, heading = boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 6]
    sizes, quarter = boxes[:, 3:6], np.pi / 2

    def box(x, y, z, heading):
        return np.column_stack([x, y, z, sizes, wrap_angle(heading)])

    return [
        box(x, y, z, heading),
        box(x, y, z, heading + quarter),
        box(x, y, z, -heading),
        box(x, y, z, quarter - heading),
        box(x, y, z + sizes[:, 2] / 2, heading),
        box(x, y, z - sizes[:, 2] / 2, heading),
        box(y, -x, z, heading - quarter),
        box(-y, x, z, heading + quarter),
        box(x, -y, z, -heading),
    ]
