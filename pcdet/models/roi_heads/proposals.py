"""From the first stage's boxes to proposals."""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import nn

from pcdet.models.candidates import Candidates, Proposals, stack_proposals
from pcdet.models.post_processing import NmsConfig, suppress
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
        kept = [self._select(scene, config) for scene in scenes]
        return stack_proposals(kept, config["NMS_POST_MAXSIZE"], scenes[0].boxes, padding_label=1)

    def _select(self, scene: Candidates, config: NmsConfig) -> Detections:
        scores, classes = scene.logits.max(dim=1)
        keep = suppress(scene.boxes, scores, config)
        return Detections(scene.boxes[keep], scores[keep], classes[keep] + 1)
