"""Overlap of every box of one set with every box of another, or with the box of the same row."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_boxes, require_same_device, tensor_of

ArrayT = TypeVar("ArrayT", np.ndarray, Tensor)


def boxes_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    """Area that two boxes share when seen from above, in square metres. (N, 7+), (M, 7+) -> (N, M) float32.

    The area is that of the true intersection polygon, computed in float64; :func:`boxes_overlap_published` gives what
    OpenPCDet's kernel takes for it, up to a few hundredths of a square metre more or less. Overlaps below 1e-12 of the
    smaller box are rounding and count as 0, and so do boxes with a size that is not above 0 or with a NaN. No gradient
    flows.

    Raises ``ValueError`` for other shapes or two devices.
    """
    return _overlap_bev(*_checked(boxes_a, boxes_b))


def boxes_overlap_published(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    """What OpenPCDet's kernel takes for the shared area, in square metres. (N, 7+), (M, 7+) -> (N, M) float32.

    Non-maximum suppression decides by it, because which of two boxes that barely overlap survives depends on it, and
    training targets are made from it (:func:`boxes_iou3d_published`), because checkpoints were trained with it. It
    differs from the true area (:func:`boxes_overlap_bev`), which everything else uses, in three ways: a corner counts
    as inside a box up to 1 cm outside it, so boxes that nearly touch overlap a little; edges that only touch or
    coincide do not cross; and the arithmetic is float32. Sizes are taken as they are, also those that are not above
    0. It is not symmetric in the last bits. A box with a NaN overlaps nothing. No gradient flows.

    Raises ``ValueError`` for other shapes or two devices.
    """
    return _overlap_published(*_checked(boxes_a, boxes_b))


def boxes_iou_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    """Intersection over union of boxes seen from above. (N, 7+), (M, 7+) -> (N, M) float32 in [0, 1].

    Geometry and errors as in :func:`boxes_overlap_bev`; 0 where both areas are 0.
    """
    return _iou_bev(*_checked(boxes_a, boxes_b))


def boxes_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    """Intersection over union of the volumes of boxes. (N, 7+), (M, 7+) -> (N, M) float32 in [0, 1].

    The shared volume is the shared area from above times the shared interval of height. Geometry and errors as in
    :func:`boxes_overlap_bev`; 0 where both volumes are 0.
    """
    return _iou3d(*_checked(boxes_a, boxes_b))


def boxes_iou3d_published(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    """:func:`boxes_iou3d` with the area of :func:`boxes_overlap_published`. (N, 7+), (M, 7+) -> (N, M) float32.

    Equal to OpenPCDet's to the last bit; 0.007 from the true one is common for boxes of pedestrians. A box with a NaN
    overlaps nothing. Errors as in :func:`boxes_overlap_bev`.
    """
    area = boxes_overlap_published(boxes_a, boxes_b)
    (low_a, high_a), (low_b, high_b) = ([b[:, 2] + sign * b[:, 5] / 2 for sign in (-1, 1)] for b in (boxes_a, boxes_b))
    height = torch.minimum(high_a[:, None], high_b) - torch.maximum(low_a[:, None], low_b)  # (N, M)
    shared = area * height.clamp(min=0)
    volume_a, volume_b = (boxes[:, 3] * boxes[:, 4] * boxes[:, 5] for boxes in (boxes_a, boxes_b))
    overlap = shared / (volume_a[:, None] + volume_b - shared).clamp(min=1e-6)
    return torch.where(area > 0, overlap, 0).detach()


def boxes_aligned_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    """Area that the boxes of each row share when seen from above. (N, 7+), (N, 7+) -> (N,) float64, square metres.

    The diagonal of :func:`boxes_overlap_bev` before it is rounded to float32: a metric that asks whether an overlap is
    above a limit must not be decided by rounding. Raises ``ValueError`` also for unequal lengths.
    """
    return _aligned_overlap_bev(*_checked_rows(boxes_a, boxes_b))


def boxes_aligned_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    """Intersection over union of the volumes of the boxes of each row. (N, 7+), (N, 7+) -> (N,) float32 in [0, 1].

    The diagonal of :func:`boxes_iou3d`, without the rest of it. Raises ``ValueError`` also for unequal lengths.
    """
    return _aligned_iou3d(*_checked_rows(boxes_a, boxes_b))


def boxes_collide_bev(
    boxes: ArrayT,  # (N, 7+)
    others: ArrayT,  # (M, 7+)
) -> ArrayT:
    """Whether a box shares area, seen from above, with one of ``others`` or another one of ``boxes``. -> (N,) bool.

    Arrays or tensors. Geometry and errors as in :func:`boxes_overlap_bev`: boxes that touch do not collide.
    """
    require_boxes("boxes", boxes)
    require_boxes("others", others)
    if isinstance(boxes, np.ndarray):
        return backend("iou3d", "cpu").boxes_collide_bev(tensor_of(boxes), tensor_of(others)).numpy()
    require_same_device(boxes=boxes, others=others)
    return _collide_bev(boxes.detach(), others.detach())


def _checked_rows(boxes_a: Tensor, boxes_b: Tensor) -> tuple[Tensor, Tensor]:
    if len(boxes_a) != len(boxes_b):
        raise ValueError(f"boxes of one row belong together, but there are {len(boxes_a)} and {len(boxes_b)}")
    return _checked(boxes_a, boxes_b)


def _checked(boxes_a: Tensor, boxes_b: Tensor) -> tuple[Tensor, Tensor]:
    require_boxes("boxes_a", boxes_a)
    require_boxes("boxes_b", boxes_b)
    require_same_device(boxes_a=boxes_a, boxes_b=boxes_b)
    return boxes_a.detach(), boxes_b.detach()


@library.custom_op("pcdet::boxes_overlap_bev", mutates_args=())
def _overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return backend("iou3d", boxes_a.device.type).boxes_overlap_bev(boxes_a, boxes_b)


@library.custom_op("pcdet::boxes_overlap_published", mutates_args=())
def _overlap_published(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return backend("iou3d", boxes_a.device.type).boxes_overlap_published(boxes_a, boxes_b)


@library.custom_op("pcdet::boxes_iou_bev", mutates_args=())
def _iou_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return backend("iou3d", boxes_a.device.type).boxes_iou_bev(boxes_a, boxes_b)


@library.custom_op("pcdet::boxes_iou3d", mutates_args=())
def _iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return backend("iou3d", boxes_a.device.type).boxes_iou3d(boxes_a, boxes_b)


@library.custom_op("pcdet::boxes_aligned_iou3d", mutates_args=())
def _aligned_iou3d(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return backend("iou3d", boxes_a.device.type).boxes_aligned_iou3d(boxes_a, boxes_b)


@library.custom_op("pcdet::boxes_aligned_overlap_bev", mutates_args=())
def _aligned_overlap_bev(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return backend("iou3d", boxes_a.device.type).boxes_aligned_overlap_bev(boxes_a, boxes_b)


@library.custom_op("pcdet::boxes_collide_bev", mutates_args=())
def _collide_bev(boxes: Tensor, others: Tensor) -> Tensor:
    return backend("iou3d", boxes.device.type).boxes_collide_bev(boxes, others)


@_collide_bev.register_fake
def _(boxes: Tensor, _others: Tensor) -> Tensor:
    return boxes.new_empty(len(boxes), dtype=torch.bool)


@_aligned_overlap_bev.register_fake
def _(boxes_a: Tensor, _boxes_b: Tensor) -> Tensor:
    return boxes_a.new_empty(len(boxes_a), dtype=torch.float64)


@_aligned_iou3d.register_fake
def _(boxes_a: Tensor, _boxes_b: Tensor) -> Tensor:
    return boxes_a.new_empty(len(boxes_a), dtype=torch.float32)


@_overlap_bev.register_fake
@_overlap_published.register_fake
@_iou_bev.register_fake
@_iou3d.register_fake
def _(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    return boxes_a.new_empty(len(boxes_a), len(boxes_b), dtype=torch.float32)
