"""Classifiers of whole clouds: slots in a row, a classification head at the end."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pcdet.models import wiring
from pcdet.models.registry import MODELS
from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.detections import ClassScores, TrainOutput


@MODELS.register
class Classifier(nn.Module):
    """Any backbone that ends in what the head reads, then the head (``cls_head``).

    Raises ``ValueError`` when there is no CLS_HEAD, or a slot reads what nobody before it writes.
    """

    def __init__(self, info: DatasetInfo, slots: Mapping[str, nn.Module]):
        super().__init__()
        if "cls_head" not in slots:
            raise ValueError(f"a Classifier needs a CLS_HEAD; its slots are {', '.join(slots) or 'none'}")
        for name, module in slots.items():
            self.add_module(name, module)
        self.steps = wiring.plan(slots, wiring.batch_keys(info))
        self.register_buffer("global_step", torch.zeros(1, dtype=torch.int64))

    def update_global_step(self) -> None:
        """Count a training step; the engine calls this after each."""
        self.global_step += 1

    def forward(self, batch: Batch) -> TrainOutput | ClassScores:
        """Losses and accuracy in training, logits (B, K) in evaluation."""
        run = wiring.run(self, self.steps, batch)
        preds = run.results["cls_head"]
        if not self.training:
            return ClassScores(preds.logits)
        labels = batch["class_labels"]
        losses = self.cls_head.loss(preds, labels)
        if "regularisation" in run.values:  # a term that a backbone asks for
            losses["loss_regularisation"] = run.values["regularisation"]
        return TrainOutput(losses, {"accuracy": accuracy(preds.logits, labels)})


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of clouds whose highest score is that of their class. (B, K), (B,) -> ()."""
    return (logits.detach().argmax(dim=1) == labels).float().mean()
