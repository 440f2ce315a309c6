"""From the first stage's boxes to proposals."""

from collections.abc import Sequence
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.models.candidates import Candidates, Proposals, stack_proposals
from pcdet.models.post_processing import NmsConfig
from pcdet.ops.nms import nms_groups
from pcdet.structures.detections import Detections


class ProposalNms(TypedDict):
    """The block NMS_CONFIG of a RoI head."""

    TRAIN: NmsConfig
    TEST: NmsConfig


class ProposalLayer(nn.Module):
    """Keeps the best boxes of the first stage, NMS_POST_MAXSIZE a scene; a scene with fewer is padded.

    Detections, of a head that suppresses by itself, become proposals as they are, padded to the largest scene.
    Scores and boxes carry no gradient.
    """

    def __init__(self, nms_config: ProposalNms):
        super().__init__()
        for mode in ("TRAIN", "TEST"):
            if nms_config[mode].get("MULTI_CLASSES_NMS", False):
                raise ValueError(f"NMS_CONFIG.{mode}: MULTI_CLASSES_NMS is not for proposals, all classes compete")
            missing = {"NMS_THRESH", "NMS_PRE_MAXSIZE", "NMS_POST_MAXSIZE"} - nms_config[mode].keys()
            if missing:
                raise ValueError(f"NMS_CONFIG.{mode} of the RoI head needs {', '.join(sorted(missing))}")
        self.nms_config = nms_config

    @torch.no_grad()
    def forward(self, scenes: Sequence[Candidates] | Sequence[Detections]) -> Proposals:
        if isinstance(scenes[0], Detections):
            rows = max(1, *(len(scene) for scene in scenes))
            return stack_proposals(scenes, rows, scenes[0].boxes, padding_label=0)
        config = self.nms_config["TRAIN" if self.training else "TEST"]
        boxes, scores, labels, held = self._best(scenes, config["NMS_PRE_MAXSIZE"])
        rotated = config.get("NMS_TYPE") != "nms_normal_gpu"
        kept, _ = nms_groups(
            boxes, scores, config["NMS_THRESH"], post_max_size=config["NMS_POST_MAXSIZE"], rotated=rotated, held=held
        )  # (B, R)
        padding, row = kept < 0, kept.clamp(min=0)
        rois = boxes.gather(1, row.unsqueeze(2).expand(-1, -1, 7)).masked_fill(padding.unsqueeze(2), 0)
        labels = labels.gather(1, row).masked_fill(padding, 1)
        return Proposals(rois, scores.gather(1, row).masked_fill(padding, 0).to(rois.dtype), labels)

    def _best(self, scenes: Sequence[Candidates], count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best ``count`` boxes of every scene, their scores and classes, padded with zeros; how many exist.

        (B, M, 7), (B, M), (B, M), (B,); M is at least 1.
        """
        most = max(1, *(min(count, len(scene.boxes)) for scene in scenes))
        columns, held = [], []
        for scene in scenes:
            scores, classes = scene.logits.max(dim=1)
            order = scores.argsort(descending=True, stable=True)[:count]
            missing = most - len(order)
            held.append(torch.full((), len(order), dtype=torch.int64, device=order.device))
            rows = (F.pad(scene.boxes[order, :7], (0, 0, 0, missing)), scores[order], classes[order] + 1)
            columns.append((rows[0], *(F.pad(part, (0, missing)) for part in rows[1:])))
        return *(torch.stack(column) for column in zip(*columns, strict=True)), torch.stack(held)
