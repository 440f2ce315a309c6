"""Annotations in the LiDAR frame, checked and laid end to end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LidarObjects:
    """Objects of all frames, frame after frame, in float64."""

    names: np.ndarray  # (N,) lower case
    boxes: np.ndarray  # (N, 7) x y z dx dy dz heading
    scores: np.ndarray  # (N,) zero for ground truths
    points: np.ndarray  # (N,) LiDAR points inside; zero where nobody counted
    ignored: np.ndarray  # (N,) bool: neither asked for nor held against anybody
    starts: np.ndarray  # (F + 1,) int64; frame f holds the objects starts[f]:starts[f + 1]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def solids(self) -> np.ndarray:
        """(N, 7) as upright boxes: x, y, bottom, sizes, heading."""
        out = self.boxes.copy()
        out[:, 2] -= self.boxes[:, 5] / 2
        return out

    @cached_property
    def distance(self) -> np.ndarray:
        """(N,) metres from the sensor to the centre, in the ground plane."""
        return np.hypot(self.boxes[:, 0], self.boxes[:, 1])


def join_truths(annos: Sequence[Mapping[str, Any]], ignored: Sequence[np.ndarray] | None) -> LidarObjects:
    """Ground truths: ``name``, ``gt_boxes_lidar`` and, where known, ``num_points_in_gt`` of each frame."""
    return _join(annos, "ground truths", {"boxes": "gt_boxes_lidar", "points": "num_points_in_gt"}, ignored)


def join_detections(annos: Sequence[Mapping[str, Any]]) -> LidarObjects:
    """Detections: ``name``, ``boxes_lidar`` and ``score`` of each frame. Raises ``ValueError`` for a NaN score."""
    found = _join(annos, "detections", {"boxes": "boxes_lidar", "scores": "score"}, None)
    if not np.isfinite(found.scores).all():
        row = int(np.flatnonzero(~np.isfinite(found.scores))[0])
        frame = annos[int(np.searchsorted(found.starts, row, side="right")) - 1]
        raise ValueError(f"a score of frame {frame.get('frame_id', '?')} is {found.scores[row]}; it must be finite")
    return found


def _join(annos, what: str, keys: Mapping[str, str], ignored: Sequence[np.ndarray] | None) -> LidarObjects:
    counts = [len(frame["name"]) for frame in annos]
    tables: dict[str, list[np.ndarray]] = {
        "boxes": [np.zeros((0, 7))],
        "scores": [np.zeros(0)],
        "points": [np.zeros(0)],
    }
    for position, frame in enumerate(annos):
        place = f"{what} of frame {frame.get('frame_id', f'number {position}')}"
        for name, table in tables.items():
            table.append(_column(frame, keys.get(name), counts[position], table[0].shape[1:], place))
    masks = ignored if ignored is not None else [np.zeros(count, dtype=bool) for count in counts]
    names = [str(name).lower() for frame in annos for name in frame["name"]]
    return LidarObjects(
        names=np.array(names, dtype=np.str_),
        ignored=np.concatenate([np.zeros(0, dtype=bool), *masks]),
        starts=np.cumsum([0, *counts]),
        **{name: np.concatenate(table) for name, table in tables.items()},
    )


def _column(frame: Mapping[str, Any], key: str | None, count: int, width: tuple[int, ...], place: str) -> np.ndarray:
    """(count, *width) float64; zeros where nobody asks for it, or where points were not counted."""
    if key is None or (key == "num_points_in_gt" and key not in frame) or count == 0:
        return np.zeros((count, *width))
    if key not in frame:
        raise ValueError(f"{place}: {key} is missing")
    values = np.asarray(frame[key], dtype=np.float64)
    values = values[:, :7] if width and values.ndim == 2 else values
    if values.shape != (count, *width):
        raise ValueError(f"{place}: {key} has shape {values.shape}, but {count} objects need {(count, *width)}")
    return values
