"""Refines proposals by keypoint features that are pooled at a grid of points (PV-RCNN, Shi et al. 2020, sec. 3.3)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.layers.fc import conv1d_stack, init_xavier
from pcdet.models.pfe.local_aggregation import LocalAggregation, build_local_aggregation
from pcdet.models.registry import ROI_HEADS
from pcdet.models.roi_heads.base import RoiHead, RoiLossConfig, RoiPreds, RoiTargetConfig
from pcdet.models.roi_heads.grid_points import roi_grid_points
from pcdet.models.roi_heads.proposals import ProposalNms
from pcdet.structures.batch import scene_counts
from pcdet.structures.dataset_info import DatasetInfo


class RoiGridPool(LocalAggregation, total=False):
    """The block ROI_GRID_POOL."""

    GRID_SIZE: int  # points along each axis of a proposal


@ROI_HEADS.register
class PVRCNNHead(RoiHead):
    """A grid of points in each proposal describes the keypoints around it; fully connected layers see all of them.

    Keypoint features are weighted by ``point_cls_scores``, how probable it is that the point is on an object, and the
    gradient reaches the point head through them.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        class_agnostic: bool = True,
        shared_fc: Sequence[int],
        cls_fc: Sequence[int],
        reg_fc: Sequence[int],
        dp_ratio: float = 0.0,
        nms_config: ProposalNms,
        roi_grid_pool: RoiGridPool,
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
        if "GRID_SIZE" not in roi_grid_pool:
            raise ValueError("PVRCNNHead: ROI_GRID_POOL needs GRID_SIZE")
        self.grid_size = roi_grid_pool["GRID_SIZE"]
        self.roi_grid_pool_layer = build_local_aggregation(channels["point_features"], roi_grid_pool, "ROI_GRID_POOL")
        width = self.grid_size**3 * self.roi_grid_pool_layer.out_channels
        self.shared_fc_layer = conv1d_stack(width, shared_fc, dropout=dp_ratio)
        width = shared_fc[-1] if shared_fc else width
        self.cls_layers = conv1d_stack(width, cls_fc, 1, dropout=dp_ratio)
        self.reg_layers = conv1d_stack(width, reg_fc, self.coder.code_size, dropout=dp_ratio)
        init_xavier(self)
        nn.init.normal_(self.reg_layers[-1].weight, std=0.001)

    def forward(
        self,
        rois: Tensor,  # (B, R, 7)
        point_coords: Tensor,  # (N, 4) scene, x, y, z; scene after scene
        point_features: Tensor,  # (N, C)
        point_cls_scores: Tensor,  # (N,) in [0, 1]
    ) -> RoiPreds:
        pooled = self._pool(rois, point_coords, point_features * point_cls_scores.unsqueeze(1))  # (B * R, G^3, C)
        shared = self.shared_fc_layer(pooled.transpose(1, 2).flatten(1))  # (B * R, C'), channel-major as published
        return RoiPreds(self.cls_layers(shared), self.reg_layers(shared))

    def _pool(self, rois: Tensor, point_coords: Tensor, features: Tensor) -> Tensor:
        scenes, rows = rois.shape[:2]
        centres = roi_grid_points(rois.detach().flatten(0, 1), self.grid_size).flatten(0, 1)
        counts = scene_counts(point_coords[:, 0], scenes)  # (B,)
        centre_counts = torch.full_like(counts, rows * self.grid_size**3)
        xyz = point_coords[:, 1:4].contiguous()
        pooled = self.roi_grid_pool_layer(xyz, counts, centres, centre_counts, features)  # (B * R * G^3, C)
        return pooled.view(scenes * rows, self.grid_size**3, self.roi_grid_pool_layer.out_channels)
