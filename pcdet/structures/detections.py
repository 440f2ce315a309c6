"""The typed results of models."""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Detections:
    """Boxes found in one scene. All fields share the first dimension, M; M = 0 is a result like any other."""

    boxes: Tensor  # (M, 7 + E) x y z dx dy dz heading, then extras such as velocity; metres and radians, LiDAR frame
    scores: Tensor  # (M,) in [0, 1]
    labels: Tensor  # (M,) int64, 1-based
    proposals: Tensor | None = None  # (R, 7) what a second stage began with; it has no part in M
    refined: Tensor | None = None  # (R, 7) what it made of them, before suppression

    def __getitem__(self, keep) -> "Detections":
        return replace(self, boxes=self.boxes[keep], scores=self.scores[keep], labels=self.labels[keep])

    def __len__(self) -> int:
        return len(self.scores)

    def to(self, device) -> "Detections":
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Detections(**{name: None if value is None else value.to(device) for name, value in moved.items()})

    @staticmethod
    def empty(extras: int = 0, device=None) -> "Detections":
        return Detections(
            torch.zeros(0, 7 + extras, device=device),
            torch.zeros(0, device=device),
            torch.zeros(0, dtype=torch.int64, device=device),
        )


class TrainOutput(NamedTuple):
    """What ``model(batch)`` returns in training mode."""

    losses: dict[str, Tensor]  # scalars; their sum is the loss
    metrics: dict[str, Tensor]  # scalars that are only logged


class ClassScores(NamedTuple):
    """What a classifier returns in evaluation mode."""

    logits: Tensor  # (B, K)


class PointScores(NamedTuple):
    """What a segmenter returns in evaluation mode."""

    logits: Tensor  # (B, N, K)
