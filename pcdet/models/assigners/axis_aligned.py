"""Which anchors are to find which labelled boxes (SECOND, sec. 3.2; the rule of SSD and Faster R-CNN)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.models import draws
from pcdet.models.assigners.overlap_pairs import OverlapPairs, nearest_bev_pairs, volume_pairs
from pcdet.utils.constants import constant


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
    cells = anchors[..., 0].numel()  # A
    rows = gt_boxes.flatten(0, 1)  # (R, 8)
    kinds = _Kinds.of(sets, anchors.shape[2], gt_boxes)
    find = volume_pairs if match_height else nearest_bev_pairs
    pairs: OverlapPairs = find(anchors, rows, rows[:, 7:].int() == kinds.label)
    anchor = pairs.boxes // slots * cells + pairs.anchors  # (N,) in the whole batch
    kind = pairs.anchors % anchors.shape[2]

    own_set = pairs.boxes * len(sets) + kinds.number[kind]
    best = gt_boxes.new_zeros(len(rows) * len(sets)).scatter_reduce(0, own_set, pairs.overlap, "amax")
    wanted = (pairs.overlap == best[own_set]) | (pairs.overlap >= kinds.matched[kind])
    ignored = pairs.overlap >= kinds.unmatched[kind]

    best = gt_boxes.new_zeros(scenes * cells).scatter_reduce(0, anchor, pairs.overlap, "amax")
    on_top = pairs.overlap == best[anchor]
    owner = torch.full((scenes * cells,), len(rows), dtype=torch.int64, device=gt_boxes.device)
    owner = owner.scatter_reduce(0, anchor, torch.where(on_top, pairs.boxes, len(rows)), "amin")

    labels = torch.zeros(scenes * cells, dtype=torch.int32, device=gt_boxes.device)
    positives = labels.scatter_reduce(0, anchor, wanted.int(), "amax").nonzero()[:, 0]  # (P,)
    found = rows[owner[positives]]  # (P, 8)
    labels = labels.scatter_reduce(0, anchor, -ignored.int(), "amin")
    labels[positives] = found[:, 7].int()
    return Matching(labels.view(scenes, -1), positives, found[:, :7])


class _Kinds(NamedTuple):
    """The set of each of the K kinds of anchors, and what holds for it. All fields are (K,)."""

    number: Tensor  # int64
    label: Tensor  # int32; -1 for kinds that are in no set
    matched: Tensor
    unmatched: Tensor

    @classmethod
    def of(cls, sets: Sequence[AnchorSet], count: int, like: Tensor) -> "_Kinds":
        nobody = AnchorSet(-1, 0, count, 1.0, 1.0)
        owners = [next((s for s in sets if s.first <= k < s.first + s.count), nobody) for k in range(count)]
        return cls(
            constant([sets.index(s) if s in sets else 0 for s in owners], like, torch.int64),
            constant([s.label for s in owners], like, torch.int32),
            constant([s.matched_threshold for s in owners], like),
            constant([s.unmatched_threshold for s in owners], like),
        )


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
        order = draws.uniform(len(candidates), generator, labels.device).argsort()
        return candidates[order[:count]]

    positives = draw((labels > 0).nonzero()[:, 0], most_positives)
    negatives = draw((labels == 0).nonzero()[:, 0], size - len(positives))
    sampled = torch.full_like(labels, -1)
    sampled[positives] = labels[positives]
    sampled[negatives] = 0
    return sampled
