"""What all second stages share: proposals, their targets, the losses, and refined boxes."""

from typing import Literal, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.models.assigners.proposal_targets import RoiTargetConfig, RoiTargets, assign_proposals, from_proposals
from pcdet.models.box_coders.choice import anchor_coder
from pcdet.models.candidates import Candidates, Proposals
from pcdet.models.losses.corners import corner_loss
from pcdet.models.losses.normalizer import normalizer
from pcdet.models.losses.pointwise import smooth_l1_loss
from pcdet.models.roi_heads.proposals import ProposalLayer, ProposalNms
from pcdet.structures.dataset_info import DatasetInfo


class RoiLossWeights(TypedDict, total=False):
    """Factors of the loss terms, 1 where not given, and of the codes of a box."""

    rcnn_cls_weight: float
    rcnn_reg_weight: float
    rcnn_corner_weight: float
    rcnn_iou_weight: float
    rcnn_iou3d_weight: float
    code_weights: list[float]


class RoiLossConfig(TypedDict, total=False):
    """The block LOSS_CONFIG of a RoI head."""

    CLS_LOSS: Literal["BinaryCrossEntropy", "CrossEntropy"]
    REG_LOSS: Literal["smooth-l1"]
    IOU_LOSS: Literal["BinaryCrossEntropy", "L2", "smoothL1", "focalbce"]
    CORNER_LOSS_REGULARIZATION: bool
    GRID_3D_IOU_LOSS: bool
    LOSS_WEIGHTS: RoiLossWeights


class RoiPreds(NamedTuple):
    """Raw predictions for all proposals, scene after scene."""

    rcnn_cls: Tensor  # (B * R, 1) confidence logits
    rcnn_reg: Tensor  # (B * R, 7) codes relative to the proposal


class RoiHead(nn.Module):
    """Base of the heads that refine proposals.

    A head adds ``forward``, which reads ``rois`` and features of the scene and returns :class:`RoiPreds`. The steps
    around it are the same for all: ``proposal_layer`` selects, ``assign`` samples and labels, ``loss`` compares,
    ``decode`` makes boxes. A proposal keeps its class; what is learned is how good it is and where its box lies.
    """

    def __init__(
        self,
        info: DatasetInfo,
        *,
        class_agnostic: bool,
        nms_config: ProposalNms,
        target_config: RoiTargetConfig,
        loss_config: RoiLossConfig,
    ):
        super().__init__()
        name = type(self).__name__
        if not class_agnostic and info.num_class > 1:
            raise ValueError(
                f"{name}: CLASS_AGNOSTIC must be True: a proposal keeps the class that the first stage gave it, and "
                "one confidence and one box are predicted for it"
            )
        if loss_config.get("CLS_LOSS") == "CrossEntropy":
            raise ValueError(
                f"{name}: LOSS_CONFIG.CLS_LOSS CrossEntropy compares classes, but there is one confidence for a "
                "proposal: take BinaryCrossEntropy"
            )
        if loss_config.get("GRID_3D_IOU_LOSS", False):
            raise ValueError(f"{name}: LOSS_CONFIG.GRID_3D_IOU_LOSS has no implementation, set it to False")
        missing = RoiTargetConfig.__annotations__.keys() - target_config.keys() - {"BOX_CODER", "BOX_CODER_CONFIG"}
        if missing:
            raise ValueError(f"{name}: TARGET_CONFIG needs {', '.join(sorted(missing))}")
        self.coder = anchor_coder(target_config)
        self.proposal_layer = ProposalLayer(nms_config)
        self.target_config = target_config
        self.loss_config = loss_config
        self.loss_weights = loss_config.get("LOSS_WEIGHTS", {})
        weights = self.loss_weights.get("code_weights", [1.0] * self.coder.code_size)
        if len(weights) != self.coder.code_size:
            raise ValueError(f"{name}: code_weights has {len(weights)} numbers, the box coder {self.coder.code_size}")
        self.register_buffer("code_weights", torch.tensor(weights, dtype=torch.float32), persistent=False)

    def assign(self, proposals: Proposals, gt_boxes: Tensor, generator: torch.Generator | None = None) -> RoiTargets:
        """Sample proposals for training; ``gt_boxes`` (B, M, 8) is padded with zero rows, ``generator`` draws."""
        return assign_proposals(proposals, gt_boxes, self.target_config, generator)

    def loss(self, preds: RoiPreds, targets: RoiTargets) -> dict[str, Tensor]:
        """Scalars: ``rcnn_loss_cls``, ``rcnn_loss_reg`` and, where it is used, ``rcnn_loss_corner``.

        Without a proposal to refine the last two are 0 and still connected to the predictions.
        """
        refined = targets.reg_valid_mask.reshape(-1, 1) > 0  # (B * R, 1)
        rois = targets.rois.reshape(-1, 7)
        # The other rows take part with codes of 0 and their proposal as the wanted box, and cost nothing: the number of
        # those that are refined is never asked for, for which the host would wait.
        codes = torch.where(refined, preds.rcnn_reg.float(), 0)  # (B * R, 7)
        losses = {"rcnn_loss_cls": self._class_loss(preds.rcnn_cls.float(), targets.rcnn_cls_labels.flatten())}
        wanted = torch.where(refined, targets.gt_of_rois.flatten(0, 1)[:, :7], _own_frame(rois))
        wanted = torch.where(refined, self.coder.encode(wanted, _own_frame(rois)), 0)
        total = smooth_l1_loss(codes, wanted, self.code_weights).sum()
        count = normalizer(refined.sum())
        losses["rcnn_loss_reg"] = total / count * self.loss_weights.get("rcnn_reg_weight", 1.0)
        if self.loss_config.get("CORNER_LOSS_REGULARIZATION", False):
            boxes = self._boxes(codes, rois)
            corners = corner_loss(boxes, targets.gt_of_rois_src.flatten(0, 1)[:, :7])  # (B * R,)
            weight = self.loss_weights.get("rcnn_corner_weight", 1.0)
            losses["rcnn_loss_corner"] = torch.where(refined[:, 0], corners, 0).sum() / count * weight
        return losses

    def _class_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        judged = labels >= 0
        wanted = labels.float().clamp(min=0)  # a label of -1, which is not judged, is no probability
        loss = F.binary_cross_entropy_with_logits(logits.flatten(), wanted, reduction="none")  # (B * R,)
        mean = torch.where(judged, loss, 0).sum() / normalizer(judged.sum())
        return mean * self.loss_weights.get("rcnn_cls_weight", 1.0)

    def _boxes(self, codes: Tensor, rois: Tensor) -> Tensor:
        """Codes (M, 7) relative to proposals (M, 7) -> boxes (M, 7) in the scene."""
        return from_proposals(self.coder.decode(codes, _own_frame(rois)), rois)

    def decode(self, preds: RoiPreds, proposals: Proposals) -> list[Candidates]:
        """The refined boxes of every scene, with the proposals' classes; rows that only pad are left out."""
        scenes, rows = proposals.rois.shape[:2]
        boxes = self._boxes(preds.rcnn_reg.float(), proposals.rois.reshape(-1, 7)).view(scenes, rows, 7)
        return candidates_of(boxes, preds.rcnn_cls, proposals)


def candidates_of(boxes: Tensor, logits: Tensor, proposals: Proposals) -> list[Candidates]:
    """Boxes (B, R, 7) and logits (B * R, K) of every scene, with the proposals' classes, without rows that only pad."""
    logits = logits.float().view(*boxes.shape[:2], logits.shape[1])  # (B, R, K)
    columns = zip(boxes, logits, proposals.roi_labels, proposals.exist, strict=True)
    return [Candidates(box[keep], logit[keep], label[keep]) for box, logit, label, keep in columns]


def _own_frame(rois: Tensor) -> Tensor:
    """Proposals (M, 7) seen from themselves: only the sizes remain."""
    return F.pad(rois[:, 3:6], (3, 1))
