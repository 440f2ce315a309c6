"""Anchors matched by a threshold of each box's own (Zhang et al., "Bridging the Gap ... via ATSS", 2020, sec. 3.2)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.models.assigners.axis_aligned import AnchorSet, Matching
from pcdet.models.assigners.overlap_pairs import OverlapPairs, nearest_bev_pairs, volume_pairs
from pcdet.structures.boxes import rotate_z


class _Pairs(NamedTuple):
    """Anchors that are to find a box; anchors are numbered over the whole batch. All fields are (N,)."""

    anchors: Tensor  # int64
    boxes: Tensor  # int64, row of the boxes
    overlap: Tensor
    forced: Tensor  # bool: the anchor that the box overlaps most


def match_anchors_adaptively(
    anchors: Tensor,  # (Y, X, K, 7)
    sets: Sequence[AnchorSet],
    gt_boxes: Tensor,  # (B, M, 8) padded with rows whose label is 0
    topk: int,
    match_height: bool = False,
) -> Matching:
    """Match the anchors of every scene to boxes of any class; every anchor is judged.

    Of each set the ``topk`` anchors nearest to a box (centre to centre, in space; of equally distant ones the first)
    are candidates. One is positive if its overlap is at least the mean of the candidates' overlaps plus their standard
    deviation, and if its centre lies in the box, seen from above. A positive of several boxes finds the one that it
    overlaps most, the first of equals. Beside these, the anchor of each set that overlaps a box most finds that box.
    Overlap is as for :func:`~pcdet.models.assigners.axis_aligned.match_anchors`; thresholds and classes of the sets
    are not used.

    Two slips of OpenPCDet are not repeated: it tests the centre against a box with length and width exchanged, and
    gives a box that overlaps nothing the very first anchor.
    """
    scene, slot = (gt_boxes[..., 7] > 0).nonzero(as_tuple=True)  # (G,) each
    boxes = gt_boxes[scene, slot]  # (G, 8)
    parts = [_match_set(anchors, one, boxes, scene, topk, match_height) for one in sets]
    pairs = _Pairs(*(torch.cat(field) for field in zip(*parts, strict=True)))

    total = len(gt_boxes) * anchors[..., 0].numel()
    owner = _owners(pairs, total, len(boxes))  # (B * A,)
    positives = (owner < len(boxes)).nonzero()[:, 0]  # (P,)
    found = boxes[owner[positives]]  # (P, 8)
    labels = torch.zeros(total, dtype=torch.int32, device=gt_boxes.device)
    labels[positives] = found[:, 7].int()
    return Matching(labels.view(len(gt_boxes), -1), positives, found[:, :7])


def _owners(pairs: _Pairs, total: int, nobody: int) -> Tensor:
    """The box of each anchor, or ``nobody``. (total,) int64"""
    best = pairs.overlap.new_zeros(total).scatter_reduce(0, pairs.anchors, pairs.overlap, "amax")
    on_top = pairs.overlap == best[pairs.anchors]
    owner = torch.full((total,), nobody, dtype=torch.int64, device=pairs.anchors.device)
    owner.scatter_reduce_(0, pairs.anchors, torch.where(on_top, pairs.boxes, nobody), "amin")
    return owner.scatter_reduce(0, pairs.anchors[pairs.forced], pairs.boxes[pairs.forced], "amax", include_self=False)


def _match_set(anchors: Tensor, one: AnchorSet, boxes: Tensor, scene: Tensor, topk: int, match_height: bool) -> _Pairs:
    """Pairs of one set's anchors with boxes (G, 8), which lie in ``scene`` (G,)."""
    grid = anchors[:, :, one.first : one.first + one.count]
    flat = grid.reshape(-1, 7)  # (N, 7)
    found: OverlapPairs = (volume_pairs if match_height else nearest_bev_pairs)(grid, boxes)
    overlap = boxes.new_zeros(len(boxes), len(flat))
    overlap[found.boxes, found.anchors] = found.overlap  # (G, N)

    near = _nearest(flat, boxes, min(topk, len(flat)))  # (G, k)
    values = overlap.gather(1, near)
    mean = values.mean(1, keepdim=True)  # (G, 1)
    variance = (values - mean).square().sum(1, keepdim=True) / (near.shape[1] - 1)  # of one candidate not a number
    chosen = (values >= mean + variance.sqrt() + 1e-6) & _centre_inside(flat[near], boxes)
    box, place = chosen.nonzero(as_tuple=True)
    hit, first = _most_overlapping(found, len(boxes), len(flat))
    box, anchor = torch.cat([box, hit]), torch.cat([near[box, place], first])
    forced = torch.arange(len(box), device=box.device) >= len(box) - len(hit)
    cell, kind = anchor // one.count, anchor % one.count
    place = scene[box] * anchors[..., 0].numel() + cell * anchors.shape[2] + one.first + kind
    return _Pairs(place, box, overlap[box, anchor], forced)


def _nearest(anchors: Tensor, boxes: Tensor, count: int) -> Tensor:
    """The ``count`` anchors (N, 7) nearest to each box (G, 7+), ascending in distance, then in index. (G, count)"""
    distance = torch.cdist(boxes[:, :3], anchors[:, :3], compute_mode="donot_use_mm_for_euclid_dist")  # (G, N)
    farthest = distance.topk(count, dim=1, largest=False).values[:, -1:]
    # topk leaves open which of equally distant ones it takes, and all anchors of a cell may be equally distant.
    box, anchor = (distance <= farthest).nonzero(as_tuple=True)  # (R,) each, by box, then by anchor
    order = distance[box, anchor].argsort(stable=True)
    order = order[box[order].argsort(stable=True)]
    rows = torch.bincount(box, minlength=len(boxes))  # (G,)
    rank = torch.arange(len(box), device=box.device) - (rows.cumsum(0) - rows)[box]
    return anchor[order][rank < count].view(len(boxes), count)


def _centre_inside(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Whether the centres of anchors (G, k, 7) lie in their box (G, 7+), seen from above. (G, k) bool"""
    offset = anchors[..., :2] - boxes[:, None, :2]  # (G, k, 2)
    heading = boxes[:, 6:7].expand(-1, anchors.shape[1]).flatten()  # (G * k,)
    local = rotate_z(offset.reshape(-1, 2), -heading).view_as(offset)
    return (local.abs() <= boxes[:, None, 3:5] / 2).all(dim=2)


def _most_overlapping(found: OverlapPairs, num_boxes: int, num_anchors: int) -> tuple[Tensor, Tensor]:
    """The boxes that overlap any anchor, and the anchor that each overlaps most, the first of equals. (H,) each"""
    best = found.overlap.new_zeros(num_boxes).scatter_reduce(0, found.boxes, found.overlap, "amax")
    on_top = found.overlap == best[found.boxes]
    first = torch.full((num_boxes,), num_anchors, dtype=torch.int64, device=best.device)
    first.scatter_reduce_(0, found.boxes, torch.where(on_top, found.anchors, num_anchors), "amin")
    hit = (first < num_anchors).nonzero()[:, 0]
    return hit, first[hit]
