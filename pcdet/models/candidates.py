"""Scored boxes on their way to detections."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.structures.detections import Detections


class Candidates(NamedTuple):
    """What a head found in one scene, before boxes suppress one another."""

    boxes: Tensor  # (A, 7+)
    logits: Tensor  # (A, K); -inf for a class that the box's head does not predict
    labels: Tensor | None = None  # (A,) int64, 1-based: the classes, where they are known already


class Proposals(NamedTuple):
    """Regions of interest, for a second stage to refine. All scenes have R rows."""

    rois: Tensor  # (B, R, 7); rows of zeros where a scene has fewer
    roi_scores: Tensor  # (B, R) as the first stage gives them: logits, or scores in [0, 1] of a centre head
    roi_labels: Tensor  # (B, R) int64, 1-based; that of a row of zeros says nothing

    @property
    def exist(self) -> Tensor:
        """Which rows are no padding. (B, R) bool"""
        return (self.rois[..., 3:6] != 0).any(dim=-1)


def stack_proposals(scenes: Sequence[Detections], rows: int, like: Tensor, padding_label: int) -> Proposals:
    """One table for all scenes, each padded to ``rows``; dtype and device are those of ``like``."""
    rois = like.new_zeros(len(scenes), rows, 7)
    scores = like.new_zeros(len(scenes), rows)
    labels = torch.full((len(scenes), rows), padding_label, dtype=torch.int64, device=like.device)
    for i, scene in enumerate(scenes):
        rois[i, : len(scene)] = scene.boxes[:, :7]
        scores[i, : len(scene)] = scene.scores
        labels[i, : len(scene)] = scene.labels
    return Proposals(rois, scores, labels)
