"""Tells how good proposals are, from the map seen from above (SECOND-IoU: an IoU branch behind Yan et al., SECOND)."""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from pcdet.layers.fc import conv1d_stack, init_xavier
from pcdet.models.assigners.proposal_targets import RoiTargets
from pcdet.models.candidates import Candidates, Proposals
from pcdet.models.losses.normalizer import normalizer
from pcdet.models.losses.pointwise import sigmoid_focal_loss
from pcdet.models.registry import ROI_HEADS
from pcdet.models.roi_heads.base import RoiHead, RoiLossConfig, RoiTargetConfig, candidates_of
from pcdet.models.roi_heads.proposals import ProposalNms
from pcdet.structures.dataset_info import DatasetInfo


class MapGridPool(TypedDict):
    """The block ROI_GRID_POOL."""

    GRID_SIZE: int  # samples along each side of a proposal
    IN_CHANNEL: int  # of the map
    DOWNSAMPLE_RATIO: int  # voxels a cell of the map, along x and y


class RoiIouPreds(NamedTuple):
    """Raw predictions for all proposals, scene after scene."""

    rcnn_iou: Tensor  # (B * R, 1) logits of the overlap with a labelled box


@ROI_HEADS.register
class SECONDHead(RoiHead):
    """Samples the map in a grid over each proposal and predicts the proposal's overlap with an object.

    Boxes stay as the first stage made them. No gradient reaches the map. ``loss_config``: IOU_LOSS of the predicted
    logit and the wanted overlap, BinaryCrossEntropy, focalbce (focal), or of the logit as it is L2, smoothL1.

    Raises ``ValueError`` where IN_CHANNEL is not the map's width.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        class_agnostic: bool = True,
        shared_fc: Sequence[int],
        iou_fc: Sequence[int],
        dp_ratio: float = 0.0,
        nms_config: ProposalNms,
        roi_grid_pool: MapGridPool,
        target_config: RoiTargetConfig,
        loss_config: RoiLossConfig,
    ):
        super().__init__(
            info,
            class_agnostic=class_agnostic,
            nms_config=nms_config,
            target_config=target_config,
            loss_config=loss_config,
        )
        width = roi_grid_pool["IN_CHANNEL"]
        found = channels["spatial_features_2d"]
        if width != found:
            raise ValueError(f"SECONDHead: ROI_GRID_POOL.IN_CHANNEL is {width}, but the map has {found} channels")
        self.grid_size = roi_grid_pool["GRID_SIZE"]
        self.corner = info.point_cloud_range[:2]
        self.cell = tuple(size * roi_grid_pool["DOWNSAMPLE_RATIO"] for size in info.voxel_size[:2])  # metres
        width *= self.grid_size**2
        self.shared_fc_layer = conv1d_stack(width, shared_fc, dropout=dp_ratio)
        self.iou_layers = conv1d_stack(shared_fc[-1] if shared_fc else width, iou_fc, 1, dropout=dp_ratio)
        init_xavier(self)

    def forward(
        self,
        rois: Tensor,  # (B, R, 7)
        spatial_features_2d: Tensor,  # (B, C, Y, X)
    ) -> RoiIouPreds:
        pooled = self._pool(rois.detach().float(), spatial_features_2d.detach().float())  # (B * R, C * G * G)
        return RoiIouPreds(self.iou_layers(self.shared_fc_layer(pooled)))

    def _pool(self, rois: Tensor, features: Tensor) -> Tensor:
        scenes, rows = rois.shape[:2]
        size = self.grid_size
        grid = self._samples(rois.reshape(scenes * rows, 7), features.shape[2:])  # (B * R, G, G, 2)
        grid = grid.view(scenes, rows * size, size, 2)
        pooled = F.grid_sample(features, grid, align_corners=True)  # (B, C, R * G, G)
        pooled = pooled.view(scenes, features.shape[1], rows, size * size).transpose(1, 2)  # (B, R, C, G * G)
        return pooled.reshape(scenes * rows, features.shape[1] * size * size)

    def _samples(self, rois: Tensor, map_size: Sequence[int]) -> Tensor:
        """Where proposals (M, 7) are sampled: x and y on the map, whose outer cells' centres are -1 and 1. (M, G, G, 2)

        From side to side of a proposal, or at its centre where G is 1. As in OpenPCDet, which checkpoints are trained
        with, a turned grid is squeezed into the sides dx along x and dy along y, for it is scaled after the turn, and
        the corner of the range is the centre of the first cell.
        """
        ny, nx = map_size
        (x1, x2), (y1, y2) = (
            [(rois[:, i] + sign * rois[:, 3 + i] / 2 - self.corner[i]) / self.cell[i] for sign in (-1, 1)]
            for i in (0, 1)
        )
        half = torch.stack([(x2 - x1) / (nx - 1), (y2 - y1) / (ny - 1)], dim=1)  # (M, 2)
        centre = torch.stack([(x1 + x2 - nx + 1) / (nx - 1), (y1 + y2 - ny + 1) / (ny - 1)], dim=1)
        cos, sin = rois[:, 6].cos()[:, None, None], rois[:, 6].sin()[:, None, None]  # (M, 1, 1)
        outer = 1.0 if self.grid_size > 1 else 0.0
        steps = torch.linspace(-outer, outer, self.grid_size, device=rois.device)  # (G,)
        y, x = steps.view(-1, 1), steps.view(1, -1)
        unit = torch.stack([x * cos - y * sin, x * sin + y * cos], dim=-1)  # (M, G, G, 2)
        return unit * half[:, None, None] + centre[:, None, None]

    def loss(self, preds: RoiIouPreds, targets: RoiTargets) -> dict[str, Tensor]:
        """A scalar: ``rcnn_loss_iou``, the mean over the proposals that are judged."""
        labels = targets.rcnn_cls_labels.flatten().float()  # (B * R,)
        judged = labels >= 0
        loss = self._iou_loss(preds.rcnn_iou.float().flatten(), labels.clamp(min=0))
        mean = torch.where(judged, loss, 0).sum() / normalizer(judged.sum())
        return {"rcnn_loss_iou": mean * self.loss_weights.get("rcnn_iou_weight", 1.0)}

    def _iou_loss(self, logits: Tensor, wanted: Tensor) -> Tensor:
        kind = self.loss_config.get("IOU_LOSS", "BinaryCrossEntropy")
        if kind == "L2":
            return F.mse_loss(logits, wanted, reduction="none")
        if kind == "smoothL1":
            return F.smooth_l1_loss(logits, wanted, reduction="none", beta=1 / 9)
        if kind == "focalbce":
            return sigmoid_focal_loss(logits, wanted)
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")

    def decode(self, preds: RoiIouPreds, proposals: Proposals) -> list[Candidates]:
        """The proposals of every scene and their logits; rows that only pad are left out."""
        return candidates_of(proposals.rois, preds.rcnn_iou, proposals)
