"""What classifiers and segmenters have in common: slots in a row, one head at the end, losses from its labels."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from pcdet.models import wiring
from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.detections import ClassScores, PointScores, TrainOutput


class CloudModel(nn.Module):
    """A model of equally long clouds. A subclass names its head, the labels it learns from, and what it returns.

    Raises ``ValueError`` when the head is absent, or a slot reads what nobody before it writes.
    """

    head: ClassVar[str]  # the slot that gives ``logits`` (..., K)
    labels: ClassVar[str]  # batch key of the labels (...); below 0 where there is none
    scores: ClassVar[type[ClassScores] | type[PointScores]]

    def __init__(self, info: DatasetInfo, slots: Mapping[str, nn.Module]):
        super().__init__()
        if self.head not in slots:
            raise ValueError(
                f"a {type(self).__name__} needs a {self.head.upper()}; its slots are {', '.join(slots) or 'none'}"
            )
        for name, module in slots.items():
            self.add_module(name, module)
        self.steps = wiring.plan(slots, wiring.batch_keys(info))
        self.register_buffer("global_step", torch.zeros(1, dtype=torch.int64))

    def forward(self, batch: Batch) -> TrainOutput | ClassScores | PointScores:
        """Losses and accuracy in training, logits in evaluation."""
        run = wiring.run(self, self.steps, batch)
        preds = run.results[self.head]
        if not self.training:
            return self.scores(preds.logits)
        labels = batch[self.labels]
        losses = getattr(self, self.head).loss(preds, labels)
        if "regularisation" in run.values:  # a term that a backbone asks for
            losses["loss_regularisation"] = run.values["regularisation"]
        return TrainOutput(losses, {"accuracy": accuracy(preds.logits, labels)})


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of labels (...) that have the highest score (..., K); those below 0 do not count. -> ()"""
    right = logits.detach().argmax(dim=-1) == labels
    return right.sum() / (labels >= 0).sum().clamp(min=1)
