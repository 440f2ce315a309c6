"""Which points lie in which boxes, for tensors on any device and for NumPy arrays."""

from typing import TypeVar

import numpy as np
from torch import Tensor

from pcdet.ops.doors import backend, require_boxes, require_columns, require_same_device, tensor_of

ArrayT = TypeVar("ArrayT", np.ndarray, Tensor)


def points_in_boxes_mask(
    points: ArrayT,  # (N, 3+)
    boxes: ArrayT,  # (M, 7+)
    margin: float = 0.0,
) -> ArrayT:
    """Whether each box holds each point. -> (M, N) bool, an array for arrays and a tensor for tensors.

    Boxes are closed: with ``margin`` 0 a point on a face is inside. ``margin`` metres are added to each side in the
    box's x and y, not in z. OpenPCDet uses 1e-2 on the CPU (ground-truth database, infos) and 1e-5 on a GPU.
    Arithmetic is float64, so a point is on a face only as far as float32 coordinates can say so. Points and boxes
    with a NaN match nothing.

    Raises ``ValueError`` for other shapes or two devices.
    """
    return _call("mask", points, boxes, margin)


def points_in_boxes_index(
    points: ArrayT,  # (N, 3+)
    boxes: ArrayT,  # (M, 7+)
    margin: float = 0.0,
) -> ArrayT:
    """For each point the lowest index of a box that holds it, -1 outside of all. -> (N,) int64.

    Membership, margin and errors as in :func:`points_in_boxes_mask`, which is the one to use where boxes overlap and
    each should count its own points.
    """
    return _call("index", points, boxes, margin)


def _call(name: str, points: ArrayT, boxes: ArrayT, margin: float) -> ArrayT:
    require_columns("points", points, "(N, 3+)", 3)
    require_boxes("boxes", boxes)
    if isinstance(points, np.ndarray):
        return _call(name, tensor_of(points), tensor_of(boxes), margin).numpy()
    require_same_device(points=points, boxes=boxes)
    return getattr(backend("points_in_boxes", points), name)(points.detach(), boxes.detach(), margin)
