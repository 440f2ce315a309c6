"""Which proposals a second stage learns from, and what it makes of them (PV-RCNN, sec. 3.3; PointRCNN, sec. 3.3)."""

import math
from typing import Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from pcdet.models import draws
from pcdet.models.box_coders.choice import AnchorCoderConfig, AnchorCoderName
from pcdet.models.candidates import Proposals
from pcdet.ops.iou3d import boxes_iou3d_published
from pcdet.structures.boxes import rotate_z


class RoiTargetConfig(TypedDict, total=False):
    """The block TARGET_CONFIG of a RoI head. Thresholds are 3-D IoUs of a proposal with its best labelled box."""

    BOX_CODER: AnchorCoderName
    BOX_CODER_CONFIG: AnchorCoderConfig
    ROI_PER_IMAGE: int  # proposals that are sampled in a scene
    FG_RATIO: float  # part of them that is foreground at the most
    SAMPLE_ROI_BY_EACH_CLASS: bool  # match only boxes of the proposal's class
    CLS_SCORE_TYPE: Literal["cls", "roi_iou", "raw_roi_iou"]
    CLS_FG_THRESH: float
    CLS_BG_THRESH: float
    CLS_BG_THRESH_LO: float  # background below is easy
    HARD_BG_RATIO: float  # part of the background that is hard
    REG_FG_THRESH: float  # a box above it is refined


class RoiTargets(NamedTuple):
    """The sampled proposals, R a scene, and what belongs to each."""

    rois: Tensor  # (B, R, 7)
    roi_scores: Tensor  # (B, R)
    roi_labels: Tensor  # (B, R)
    gt_of_rois: Tensor  # (B, R, 8) the best labelled box in the proposal's own frame, heading in [-pi / 2, pi / 2]
    gt_of_rois_src: Tensor  # (B, R, 8) the same box as it is labelled; zeros where there is none
    gt_iou_of_rois: Tensor  # (B, R)
    reg_valid_mask: Tensor  # (B, R) int64; 1 where the box is refined
    rcnn_cls_labels: Tensor  # (B, R) wanted confidence; -1 where it is not judged

    @property
    def proposals(self) -> Proposals:
        return Proposals(self.rois, self.roi_scores, self.roi_labels)


@torch.no_grad()
def assign_proposals(
    proposals: Proposals, gt_boxes: Tensor, config: RoiTargetConfig, generator: torch.Generator | None
) -> RoiTargets:
    """Sample proposals of every scene and give each its targets. ``gt_boxes`` (B, M, 8) is padded with zero rows."""
    samples = []
    for roi, score, label, gt in zip(*proposals, gt_boxes.float(), strict=True):
        iou, match = match_proposals(roi, label, gt, config["SAMPLE_ROI_BY_EACH_CLASS"])
        keep = sample_proposals(iou, config, generator)  # (R,)
        box = gt[match[keep]] if len(gt) else gt.new_zeros(len(keep), 8)
        samples.append((roi[keep], score[keep], label[keep], box, iou[keep]))
    rois, scores, labels, boxes, iou = (torch.stack(column) for column in zip(*samples, strict=True))
    refined = (iou > config["REG_FG_THRESH"]).long()
    return RoiTargets(rois, scores, labels, to_proposals(boxes, rois), boxes, iou, refined, _confidence(iou, config))


def match_proposals(rois: Tensor, labels: Tensor, gt: Tensor, by_class: bool) -> tuple[Tensor, Tensor]:
    """3-D IoU (R,) with the best of ``gt`` (M, 8), which may be padded with zero rows, and its row (R,).

    Where nothing overlaps these are 0 and the first row that might have matched, or row 0.
    """
    if len(gt) == 0:
        return rois.new_zeros(len(rois)), torch.zeros_like(labels)
    overlaps = boxes_iou3d_published(rois[:, :7], gt[:, :7])  # (R, M)
    own_class = (labels[:, None] == gt[:, 7].long()) & (gt[:, 7] > 0)  # (R, M)
    allowed = own_class if by_class else torch.ones_like(own_class)
    iou, match = (overlaps * allowed).max(dim=1)
    return iou, torch.where(iou > 0, match, allowed.byte().argmax(dim=1))


def sample_proposals(iou: Tensor, config: RoiTargetConfig, generator: torch.Generator | None) -> Tensor:
    """Rows of ROI_PER_IMAGE proposals, foreground first; one may be drawn repeatedly where there are few. (R,) int64"""
    wanted = config["ROI_PER_IMAGE"]
    foreground = (iou >= min(config["REG_FG_THRESH"], config["CLS_FG_THRESH"])).nonzero()[:, 0]
    hard = ((iou < config["REG_FG_THRESH"]) & (iou >= config["CLS_BG_THRESH_LO"])).nonzero()[:, 0]
    easy = (iou < config["CLS_BG_THRESH_LO"]).nonzero()[:, 0]
    if len(hard) + len(easy) == 0:
        part = draws.uniform(wanted, generator, iou.device) * len(foreground)
        return foreground[part.long().clamp(max=len(foreground) - 1)]
    count = min(round(config["FG_RATIO"] * wanted), len(foreground))
    chosen = foreground[draws.permutation(len(foreground), generator, iou.device)[:count]] if count else foreground[:0]
    return torch.cat([chosen, _sample_background(hard, easy, wanted - count, config["HARD_BG_RATIO"], generator)])


def _sample_background(
    hard: Tensor, easy: Tensor, wanted: int, hard_ratio: float, generator: torch.Generator | None
) -> Tensor:
    """``wanted`` rows with replacement; of the hard ones at most their number where there are easy ones too."""
    if len(hard) == 0:
        count = 0
    elif len(easy) == 0:
        count = wanted
    else:
        count = min(int(wanted * hard_ratio), len(hard))
    parts = [(hard, count), (easy, wanted - count)]
    return torch.cat([rows[draws.integers(len(rows), n, generator, rows.device)] for rows, n in parts if n > 0])


def _confidence(iou: Tensor, config: RoiTargetConfig) -> Tensor:
    """What the classifier is to say of proposals with these overlaps."""
    low, high = config["CLS_BG_THRESH"], config["CLS_FG_THRESH"]
    if config["CLS_SCORE_TYPE"] == "raw_roi_iou":
        return iou
    if config["CLS_SCORE_TYPE"] == "cls":
        return torch.where((iou > low) & (iou < high), -1, (iou > high).long())
    return ((iou - low) / (high - low)).clamp(0, 1)


def to_proposals(boxes: Tensor, rois: Tensor) -> Tensor:
    """Boxes (B, R, 7+) in the frames of ``rois`` (B, R, 7): metres from the centre, along the heading.

    A box that faces against its proposal is turned round: which way it faces is the first stage's to say.
    """
    yaw = rois[..., 6] % (2 * math.pi)  # (B, R)
    centre = boxes[..., :3] - rois[..., :3]
    centre = rotate_z(centre.reshape(-1, 3), -yaw.reshape(-1)).view_as(centre)
    heading = (boxes[..., 6] - yaw) % (2 * math.pi)
    opposite = (heading > math.pi * 0.5) & (heading < math.pi * 1.5)
    heading = torch.where(opposite, (heading + math.pi) % (2 * math.pi), heading)
    heading = torch.where(heading > math.pi, heading - 2 * math.pi, heading).clamp(-math.pi / 2, math.pi / 2)
    return torch.cat([centre, boxes[..., 3:6], heading.unsqueeze(-1), boxes[..., 7:]], dim=-1)


def from_proposals(boxes: Tensor, rois: Tensor) -> Tensor:
    """Boxes (M, 7+) in the frames of ``rois`` (M, 7) -> in the scene: the inverse of :func:`to_proposals`."""
    centre = rotate_z(boxes[:, :3], rois[:, 6]) + rois[:, :3]
    return torch.cat([centre, boxes[:, 3:6], boxes[:, 6:7] + rois[:, 6:7], boxes[:, 7:]], dim=1)
