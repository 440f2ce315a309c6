"""Which anchors overlap which boxes, without a table of all anchors against all boxes."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.ops.iou3d import boxes_iou3d_published
from pcdet.structures.boxes import limit_period


class OverlapPairs(NamedTuple):
    """Pairs with an overlap above 0. All fields are (N,)."""

    anchors: Tensor  # int64, flat index into the grid (Y, X, K)
    boxes: Tensor  # int64, row of the boxes
    overlap: Tensor  # float32


def nearest_bev_rectangles(boxes: Tensor) -> Tensor:
    """Boxes seen from above, turned to the nearest axis. (..., 7+) -> (..., 4) x1, y1, x2, y2."""
    sideways = limit_period(boxes[..., 6], 0.5, math.pi).abs() >= math.pi / 4  # (...)
    size = torch.where(sideways.unsqueeze(-1), boxes[..., 3:5].flip(-1), boxes[..., 3:5])  # (..., 2)
    return torch.cat([boxes[..., :2] - size / 2, boxes[..., :2] + size / 2], dim=-1)


def nearest_bev_pairs(anchors: Tensor, boxes: Tensor, asked: Tensor | None = None) -> OverlapPairs:
    """Intersection over union of axis-aligned rectangles (see :func:`nearest_bev_rectangles`).

    ``anchors`` (Y, X, K, 7) form a grid: x depends on the column only, y on the row only, both ascending. A
    rectangle then meets the anchors of one kind in a window of rows and columns, which two short tables give;
    memory and time go with the windows instead of with anchors times boxes (M, 7+). Of the kinds only those are
    paired that ``asked`` (M, K) names for a box.
    """
    _, nx, kinds, _ = anchors.shape
    x = _spans(nearest_bev_rectangles(anchors[0])[..., 0::2], nearest_bev_rectangles(boxes)[:, 0::2])
    y = _spans(nearest_bev_rectangles(anchors[:, 0])[..., 1::2], nearest_bev_rectangles(boxes)[:, 1::2])
    width = x.count if asked is None else x.count * asked
    window, column, row = _cells(x.first, width, y.first, y.count)  # (N,) each
    box, kind = window // kinds, window % kinds

    shared = x.shared[box, kind, column] * y.shared[box, kind, row]
    area = x.lengths[kind, column] * y.lengths[kind, row]
    union = area + (x.box_lengths * y.box_lengths)[box] - shared
    return OverlapPairs((row * nx + column) * kinds + kind, box, shared / union.clamp(min=1e-6))


def volume_pairs(anchors: Tensor, boxes: Tensor, asked: Tensor | None = None) -> OverlapPairs:
    """Intersection over union of the rotated volumes. (Y, X, K, 7), (M, 7+); ``asked`` as above."""
    if asked is None:
        overlap = boxes_iou3d_published(anchors.reshape(-1, 7), boxes)  # (A, M)
        anchor, box = overlap.nonzero(as_tuple=True)
        return OverlapPairs(anchor, box, overlap[anchor, box])
    kinds, parts = anchors.shape[2], []
    for kind in range(kinds):
        rows = asked[:, kind].nonzero()[:, 0]
        some = volume_pairs(anchors[:, :, kind : kind + 1], boxes[rows])
        parts.append(OverlapPairs(some.anchors * kinds + kind, rows[some.boxes], some.overlap))
    return OverlapPairs(*(torch.cat(field) for field in zip(*parts, strict=True)))


class _Spans(NamedTuple):
    """Overlaps along one axis, n being its cells."""

    shared: Tensor  # (M, K, n) length that a box shares with an anchor, negative where they are apart
    first: Tensor  # (M, K) first cell whose anchor overlaps the box
    count: Tensor  # (M, K) number of such cells, which are neighbours
    lengths: Tensor  # (K, n) of the anchors
    box_lengths: Tensor  # (M,)


def _spans(anchors: Tensor, boxes: Tensor) -> _Spans:
    """Anchors (n, K, 2) and boxes (M, 2) as intervals."""
    low, high = anchors.permute(2, 1, 0)  # (K, n) each
    box_low, box_high = boxes.T[..., None, None]  # (M, 1, 1) each
    shared = torch.minimum(high, box_high) - torch.maximum(low, box_low)  # (M, K, n)
    hit = shared > 0
    return _Spans(shared, hit.byte().argmax(2), hit.sum(2), high - low, (box_high - box_low)[:, 0, 0])


def _cells(first_x: Tensor, count_x: Tensor, first_y: Tensor, count_y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unroll windows, all (M, K), into cells: index of the window, column, row, (N,) each."""
    first_x, count_x, first_y = first_x.flatten(), count_x.flatten(), first_y.flatten()
    size = count_x * count_y.flatten()  # (W,)
    total = int(size.sum())  # N
    window = torch.repeat_interleave(size, output_size=total)  # (N,)
    place = torch.arange(total, device=window.device) - (size.cumsum(0) - size)[window]
    width = count_x[window]
    return window, first_x[window] + place % width, first_y[window] + place // width
