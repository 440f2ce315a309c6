"""Which anchors are to find which labelled boxes (SECOND, sec. 3.2; the rule of SSD and Faster R-CNN)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.models.assigners.overlap_pairs import OverlapPairs, nearest_bev_pairs, volume_pairs


@dataclass(frozen=True)
class AnchorSet:
    """The anchors of one class at every cell: the slots ``first`` to ``first + count`` of the grid's K."""

    label: int  # 1-based
    first: int
    count: int
    matched_threshold: float
    unmatched_threshold: float


class Matching(NamedTuple):
    """What each anchor is to find."""

    labels: Tensor  # (B, A) int32: 1-based class, 0 background, -1 not to be judged
    positives: Tensor  # (P,) int64, ascending flat indices into (B, A) of the labels above 0
    boxes: Tensor  # (P, 7) the box that each of them is to find


class _Candidates(NamedTuple):
    """Pairs of all sets; anchors and boxes numbered over the whole batch. All fields are (N,)."""

    anchors: Tensor
    boxes: Tensor
    overlap: Tensor
    ignored: Tensor  # bool: the overlap is too large for background
    wanted: Tensor  # bool: it is large enough for a positive, or the largest that the box has with the set


def match_anchors(
    anchors: Tensor,  # (Y, X, K, 7)
    sets: Sequence[AnchorSet],
    gt_boxes: Tensor,  # (B, M, 8) padded with rows whose label is 0
    match_height: bool = False,
) -> Matching:
    """Match the anchors of every scene to the boxes of their own class.

    An anchor is positive if its best overlap is at least its set's matched threshold, or equals the best that any
    anchor of the set has with some box (so every box that overlaps an anchor has one; ties all count). It is
    background below the unmatched threshold, and otherwise not judged. A positive finds the box that it overlaps
    most, the first of equals. Overlap is that of rectangles turned to the nearest axis, or with ``match_height``
    that of the rotated volumes. A = Y * X * K in this order.
    """
    scenes, slots = gt_boxes.shape[:2]
    total = scenes * anchors[..., 0].numel()
    pairs = _candidates(anchors, sets, gt_boxes, match_height)

    best = gt_boxes.new_zeros(total).scatter_reduce(0, pairs.anchors, pairs.overlap, "amax")
    on_top = pairs.overlap == best[pairs.anchors]
    owner = torch.full((total,), scenes * slots, dtype=torch.int64, device=gt_boxes.device)
    owner = owner.scatter_reduce(0, pairs.anchors, torch.where(on_top, pairs.boxes, scenes * slots), "amin")

    positives = pairs.anchors[pairs.wanted].unique()  # (P,)
    found = gt_boxes.reshape(-1, gt_boxes.shape[-1])[owner[positives]]  # (P, 8)
    labels = torch.zeros(total, dtype=torch.int32, device=gt_boxes.device)
    labels = labels.scatter_reduce(0, pairs.anchors, -pairs.ignored.int(), "amin")
    labels[positives] = found[:, 7].int()
    return Matching(labels.view(scenes, -1), positives, found[:, :7])


def _candidates(anchors: Tensor, sets: Sequence[AnchorSet], gt_boxes: Tensor, match_height: bool) -> _Candidates:
    parts = [_set_candidates(anchors, one, gt_boxes, match_height) for one in sets]
    return _Candidates(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _set_candidates(anchors: Tensor, one: AnchorSet, gt_boxes: Tensor, match_height: bool) -> _Candidates:
    """Pairs of one set's anchors with the boxes of its class."""
    scene, slot = (gt_boxes[..., 7].int() == one.label).nonzero(as_tuple=True)  # (G,) each
    grid = anchors[:, :, one.first : one.first + one.count]
    find = volume_pairs if match_height else nearest_bev_pairs
    pairs: OverlapPairs = find(grid, gt_boxes[scene, slot])

    best = gt_boxes.new_zeros(len(scene)).scatter_reduce(0, pairs.boxes, pairs.overlap, "amax")  # (G,)
    wanted = (pairs.overlap == best[pairs.boxes]) | (pairs.overlap >= one.matched_threshold)
    cell, kind = pairs.anchors // one.count, pairs.anchors % one.count
    kinds = anchors.shape[2]
    place = scene[pairs.boxes] * anchors[..., 0].numel() + cell * kinds + one.first + kind
    row = scene[pairs.boxes] * gt_boxes.shape[1] + slot[pairs.boxes]
    return _Candidates(place, row, pairs.overlap, pairs.overlap >= one.unmatched_threshold, wanted)


def sample_anchors(
    matching: Matching, positive_fraction: float, size: int, generator: torch.Generator | None = None
) -> Matching:
    """Judge only ``size`` random anchors a scene, at most ``positive_fraction`` of them positive (Faster R-CNN).

    The others get the label -1. Draws from ``generator``, or from torch's global one.
    """
    labels = torch.stack(
        [_sample_scene(row, int(positive_fraction * size), size, generator) for row in matching.labels]
    )
    kept = labels.flatten()[matching.positives] > 0
    return Matching(labels, matching.positives[kept], matching.boxes[kept])


def _sample_scene(labels: Tensor, most_positives: int, size: int, generator: torch.Generator | None) -> Tensor:
    def draw(candidates: Tensor, count: int) -> Tensor:
        order = torch.rand(len(candidates), generator=generator, device=labels.device).argsort()
        return candidates[order[:count]]

    positives = draw((labels > 0).nonzero()[:, 0], most_positives)
    negatives = draw((labels == 0).nonzero()[:, 0], size - len(positives))
    sampled = torch.full_like(labels, -1)
    sampled[positives] = labels[positives]
    sampled[negatives] = 0
    return sampled
