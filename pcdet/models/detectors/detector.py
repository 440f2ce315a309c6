"""Detectors of one stage: slots in a row, a dense head at the end."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from pcdet.models import wiring
from pcdet.models.grid import require_divisible_grid
from pcdet.models.post_processing import PostProcessing, select_detections
from pcdet.models.registry import MODELS
from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.detections import Detections, TrainOutput


@MODELS.register(name="PointPillar")
@MODELS.register(name="SECONDNet")
class Detector(nn.Module):
    """Runs its slots in order and trains or reads the dense head.

    Serves every one-stage model: which one it is depends on the slots. In training ``model(batch)`` returns
    :class:`TrainOutput`, in evaluation one :class:`Detections` a scene. Attribute names and ``global_step``, the
    number of training steps so far, are those of OpenPCDet's checkpoints.
    """

    def __init__(
        self,
        info: DatasetInfo,
        slots: Mapping[str, nn.Module],
        *,
        post_processing: PostProcessing,
    ):
        super().__init__()
        if "dense_head" not in slots:
            raise ValueError(f"a one-stage detector needs the slot DENSE_HEAD; it has {list(slots)}")
        if post_processing.get("NMS_CONFIG", {}).get("NMS_THRESH") is None:
            raise ValueError("POST_PROCESSING needs NMS_CONFIG with NMS_THRESH, the overlap that suppresses a box")
        self.steps = wiring.plan(slots, wiring.batch_keys(info))
        require_divisible_grid(info, slots)
        for name, module in slots.items():
            self.add_module(name, module)
        self.post_processing = post_processing
        self.register_buffer("global_step", torch.zeros(1, dtype=torch.int64))

    def update_global_step(self) -> None:
        """Count a training step; the engine calls this after each."""
        self.global_step += 1

    def forward(self, batch: Batch) -> TrainOutput | list[Detections]:
        """Losses of a labelled batch in training, detections in evaluation."""
        preds = wiring.run(self, self.steps, batch)["dense_head"]
        if self.training:
            return self._train(preds, batch)
        boxes, logits = self.dense_head.decode(preds)  # (B, A, 7), (B, A, K)
        return [select_detections(*scene, self.post_processing) for scene in zip(boxes, logits, strict=True)]

    def _train(self, preds: NamedTuple, batch: Batch) -> TrainOutput:
        """Losses of the head's predictions against the labels."""
        targets = self.dense_head.assign(batch["gt_boxes"], self._generator())
        losses = self.dense_head.loss(preds, targets)
        total = sum(losses.values()).detach()
        # OpenPCDet's TensorBoard curves show the one sum under both names, and its terms.
        metrics = {name: term.detach() for name, term in losses.items()} | {"rpn_loss": total, "loss_rpn": total}
        return TrainOutput(losses, metrics)

    def _generator(self) -> torch.Generator | None:
        """Draws that depend on the step alone, so that a resumed training repeats them; None where nobody draws."""
        if not self.dense_head.samples_anchors:
            return None
        generator = torch.Generator(device=self.global_step.device)
        return generator.manual_seed(int(self.global_step))
