"""Annotation dictionaries, checked and laid end to end: what the kernels run over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Objects:
    """Objects of all frames, frame after frame and in the order of their files. Everything is float64."""

    names: np.ndarray  # (N,) lower case
    bbox: np.ndarray  # (N, 4) pixels, x1 y1 x2 y2
    boxes: np.ndarray  # (N, 7) camera frame: x y z of the bottom centre, l h w, rotation_y
    alpha: np.ndarray  # (N,) radians
    truncated: np.ndarray  # (N,)
    occluded: np.ndarray  # (N,)
    scores: np.ndarray  # (N,) zero for ground truths
    starts: np.ndarray  # (F + 1,) int64; frame f holds the objects starts[f]:starts[f + 1]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def solids(self) -> np.ndarray:
        """(N, 7) as upright boxes: x to the right and z forward lie on the ground, y points down to the bottom.

        Rotation about the camera's y axis is clockwise in that plane.
        """
        x, y, z, length, height, width, rotation = self.boxes.T
        return np.stack([x, z, -y, length, width, height, -rotation], axis=1)


# The columns of a frame's table, before the score; keys of the dictionaries and their widths.
_COLUMNS = {"bbox": 4, "location": 3, "dimensions": 3, "rotation_y": 1, "alpha": 1, "truncated": 1, "occluded": 1}
# A box in space that is not finite overlaps nothing; these have no such way out.
_FINITE = ("bbox", "alpha", "score")


def join_frames(annos: Sequence[Mapping[str, Any]], *, scored: bool) -> Objects:
    """Lay OpenPCDet's annotation dictionaries (one a frame) end to end; ``scored`` says that they are detections.

    Raises ``ValueError`` naming the frame's position and key if an array is missing or has another length, or if a
    2-D box, an alpha or a score is not finite.
    """
    what = "detections" if scored else "ground truths"
    places = [f"{what} of frame {_frame_name(frame, f)}" for f, frame in enumerate(annos)]
    tables = [_rows(frame, scored, place) for frame, place in zip(annos, places, strict=True)]
    names = [[str(name).lower() for name in frame["name"]] for frame in annos]
    table = np.concatenate([np.zeros((0, 15)), *tables])
    return Objects(
        names=np.array(list(chain.from_iterable(names)), dtype=np.str_),
        bbox=table[:, :4].copy(),
        boxes=table[:, 4:11].copy(),
        alpha=table[:, 11].copy(),
        truncated=table[:, 12].copy(),
        occluded=table[:, 13].copy(),
        scores=table[:, 14].copy(),
        starts=np.cumsum([0, *map(len, names)]),
    )


def _frame_name(frame: Mapping[str, Any], position: int) -> str:
    return str(frame.get("frame_id", f"number {position}"))


def _rows(frame: Mapping[str, Any], scored: bool, place: str) -> np.ndarray:
    """(N, 15) float64 table of one frame."""
    wanted = ("name", *_COLUMNS, *(["score"] if scored else []))
    missing = [key for key in wanted if key not in frame]
    if missing:
        raise ValueError(f"{place}: {', '.join(missing)} missing; the evaluation needs {', '.join(wanted)}")
    count = len(frame["name"])
    score = _column(frame, "score", count, 1, place) if scored else np.zeros((count, 1))
    columns = [_column(frame, key, count, width, place) for key, width in _COLUMNS.items()]
    for key, values in zip([*_COLUMNS, "score"], [*columns, score], strict=True):
        if key in _FINITE and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
            raise ValueError(f"{place}: {key} of object {row} is {values[row].tolist()}; it must be finite")
    return np.concatenate([*columns, score], axis=1)


def _column(frame: Mapping[str, Any], key: str, count: int, width: int, place: str) -> np.ndarray:
    values = _double(np.asarray(frame[key]))
    if values.size != count * width:
        raise ValueError(f"{place}: {key} has shape {values.shape}, but {count} objects need {(count, width)}")
    return values.reshape(count, width)


def _double(values: np.ndarray) -> np.ndarray:
    """As float64. Info files hold some of the labels as float32: these become the decimals of the label file again.

    Otherwise a box of exactly 40 px, or an overlap of exactly 0.7, may fall on the other side.
    """
    if values.dtype == np.float32:
        values = values.astype(np.str_)  # the shortest decimals that give this float32
    return values.astype(np.float64)
