"""Which points lie in which boxes, for tensors on any device and for NumPy arrays."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, library

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
    _require(points, boxes)
    if isinstance(points, np.ndarray):
        return backend("points_in_boxes", "cpu").mask(tensor_of(points), tensor_of(boxes), margin).numpy()
    require_same_device(points=points, boxes=boxes)
    return _mask(points.detach(), boxes.detach(), margin)


def points_in_boxes_index(
    points: ArrayT,  # (N, 3+)
    boxes: ArrayT,  # (M, 7+)
    margin: float = 0.0,
) -> ArrayT:
    """For each point the lowest index of a box that holds it, -1 outside of all. -> (N,) int64.

    Membership, margin and errors as in :func:`points_in_boxes_mask`, which is the one to use where boxes overlap and
    each should count its own points.
    """
    _require(points, boxes)
    if isinstance(points, np.ndarray):
        return backend("points_in_boxes", "cpu").index(tensor_of(points), tensor_of(boxes), margin).numpy()
    require_same_device(points=points, boxes=boxes)
    return _index(points.detach(), boxes.detach(), margin)


def points_in_any_box(
    points: ArrayT,  # (N, 3+)
    boxes: ArrayT,  # (M, 7+)
    margin: float = 0.0,
) -> ArrayT:
    """Whether any box holds each point. -> (N,) bool.

    ``points_in_boxes_mask(...).any(0)`` without the mask; membership, margin and errors are the same.
    """
    _require(points, boxes)
    if isinstance(points, np.ndarray):
        return backend("points_in_boxes", "cpu").any_box(tensor_of(points), tensor_of(boxes), margin).numpy()
    require_same_device(points=points, boxes=boxes)
    return _any(points.detach(), boxes.detach(), margin)


def _require(points: np.ndarray | Tensor, boxes: np.ndarray | Tensor) -> None:
    require_columns("points", points, "(N, 3+)", 3)
    require_boxes("boxes", boxes)
    if isinstance(points, np.ndarray) != isinstance(boxes, np.ndarray):
        raise ValueError(f"points ({type(points).__name__}) and boxes ({type(boxes).__name__}) must be of one kind")


@library.custom_op("pcdet::points_in_boxes_mask", mutates_args=())
def _mask(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    return backend("points_in_boxes", points.device.type).mask(points, boxes, margin)


@_mask.register_fake
def _(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    return points.new_empty(len(boxes), len(points), dtype=torch.bool)


@library.custom_op("pcdet::points_in_boxes_index", mutates_args=())
def _index(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    return backend("points_in_boxes", points.device.type).index(points, boxes, margin)


@_index.register_fake
def _(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    return points.new_empty(len(points), dtype=torch.int64)


@library.custom_op("pcdet::points_in_any_box", mutates_args=())
def _any(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    return backend("points_in_boxes", points.device.type).any_box(points, boxes, margin)


@_any.register_fake
def _(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    return points.new_empty(len(points), dtype=torch.bool)
