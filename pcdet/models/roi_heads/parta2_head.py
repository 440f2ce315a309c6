"""Boxes refined from the parts of objects in them (Shi et al., "From Points to Parts", sec. 3.3-3.4)."""

from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from pcdet.layers.fc import conv1d_stack, init_xavier
from pcdet.layers.sparse import SparseConvTensor, SparseSequential, SubMConv3d
from pcdet.models.assigners.proposal_targets import RoiTargetConfig, RoiTargets
from pcdet.models.backbones_3d.blocks import sparse_block
from pcdet.models.registry import ROI_HEADS
from pcdet.models.roi_heads.base import RoiHead, RoiLossConfig
from pcdet.models.roi_heads.proposals import ProposalNms
from pcdet.ops.roiaware_pool import roi_cells
from pcdet.structures.batch import scene_counts
from pcdet.structures.dataset_info import DatasetInfo

FEWEST_CELLS = 3  # below, a batch's proposals are empty: nothing is to be learned from them


class RoiAwarePool(TypedDict):
    """The block ROI_AWARE_POOL: cells along each side of a proposal, channels and most points of a cell."""

    POOL_SIZE: int
    NUM_FEATURES: int
    MAX_POINTS_PER_VOXEL: int


class PartA2Preds(NamedTuple):
    """Raw predictions for all proposals, scene after scene."""

    rcnn_cls: Tensor  # (B * R, 1) confidence logits
    rcnn_reg: Tensor  # (B * R, 7) codes relative to the proposal
    rcnn_judged: bool  # whether there were points in the proposals


class Cells(NamedTuple):
    """The cells of all proposals that count, S of them."""

    index: Tensor  # (S, 4) proposal of the batch, then the cell along its x, y, z
    parts: Tensor  # (S, 4) mean of the points' parts and scores
    features: Tensor  # (S, C) maximum of the points' features


@ROI_HEADS.register
class PartA2FCHead(RoiHead):
    """Pools parts and features of points over a grid of cells in each proposal, and convolves the cells with points.

    The parts of a point whose score is below ``seg_mask_score_thresh`` are 0. With ``disable_part`` a point's
    coordinates take their place. ``shared_fc``, ``cls_fc`` and ``reg_fc`` are the widths of the fully connected
    layers over all cells, ``dp_ratio`` is the rate of dropout in them.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        class_agnostic: bool,
        shared_fc: list[int],
        cls_fc: list[int],
        reg_fc: list[int],
        dp_ratio: float,
        seg_mask_score_thresh: float,
        roi_aware_pool: RoiAwarePool,
        nms_config: ProposalNms,
        target_config: RoiTargetConfig,
        loss_config: RoiLossConfig,
        disable_part: bool = False,
    ):
        super().__init__(
            info,
            class_agnostic=class_agnostic,
            nms_config=nms_config,
            target_config=target_config,
            loss_config=loss_config,
        )
        self.disable_part = disable_part
        self.score_threshold = seg_mask_score_thresh
        self.pool_size = roi_aware_pool["POOL_SIZE"]
        self.max_points = roi_aware_pool["MAX_POINTS_PER_VOXEL"]
        width = roi_aware_pool["NUM_FEATURES"]
        parts = (3 if disable_part else channels["point_part_offset"]) + 1
        self.conv_part = _cell_layers(parts, width // 2)
        self.conv_rpn = _cell_layers(channels["point_features"], width // 2)
        cells = self.pool_size**3
        self.shared_fc_layer = conv1d_stack(2 * (width // 2) * cells, shared_fc, dropout=dp_ratio)
        self.cls_layers = conv1d_stack(shared_fc[-1], cls_fc, 1, dropout=dp_ratio)
        self.reg_layers = conv1d_stack(shared_fc[-1], reg_fc, self.coder.code_size, dropout=dp_ratio)
        init_xavier(self)
        nn.init.normal_(self.reg_layers[-1].weight, mean=0, std=0.001)

    def forward(
        self,
        rois: Tensor,  # (B, R, 7)
        point_coords: Tensor,  # (N, 4) scene, x, y, z; scene after scene
        point_features: Tensor,  # (N, C)
        point_cls_scores: Tensor,  # (N,)
        point_part_offset: Tensor | None = None,  # (N, 3)
    ) -> PartA2Preds:
        cells = self._pool(rois, point_coords, point_features, point_cls_scores, point_part_offset)
        rows = rois.shape[0] * rois.shape[1]
        judged = len(cells.index) >= FEWEST_CELLS
        if not judged:
            cells = _corner_cells(cells, rows)
        grid = SparseConvTensor(cells.parts, cells.index, (self.pool_size,) * 3, rows)
        parts = self.conv_part(grid).features  # (S, width / 2)
        features = self.conv_rpn(grid.replace_feature(cells.features)).features  # (S, width / 2)
        dense = grid.replace_feature(torch.cat([features, parts], dim=1)).dense()  # (B * R, width, X, Y, Z)
        shared = self.shared_fc_layer(dense.flatten(1))  # (B * R, shared_fc[-1])
        return PartA2Preds(self.cls_layers(shared), self.reg_layers(shared), judged)

    def loss(self, preds: PartA2Preds, targets: RoiTargets) -> dict[str, Tensor]:
        """As in :class:`RoiHead`; all terms are 0 where the proposals held no points."""
        if not preds.rcnn_judged:
            targets = targets._replace(
                rcnn_cls_labels=torch.full_like(targets.rcnn_cls_labels, -1),
                reg_valid_mask=torch.zeros_like(targets.reg_valid_mask),
            )
        return super().loss(preds, targets)

    def _pool(
        self,
        rois: Tensor,
        point_coords: Tensor,
        point_features: Tensor,
        point_cls_scores: Tensor,
        point_part_offset: Tensor | None,
    ) -> Cells:
        scenes, rows = rois.shape[:2]
        counts = scene_counts(point_coords[:, 0], scenes)  # (B,)
        xyz, boxes = point_coords[:, 1:4], rois.reshape(-1, rois.shape[-1])[:, :7]
        cells = roi_cells(boxes, xyz, self.pool_size, self.max_points, torch.full_like(counts, rows), counts)
        scores = point_cls_scores.detach().float().unsqueeze(1)  # (N, 1)
        parts = xyz if self.disable_part else point_part_offset.float()
        parts = torch.where(scores < self.score_threshold, 0, parts)  # (N, 3)
        pooled = cells.pool(torch.cat([parts, scores], dim=1), "avg")  # (S, 4)
        kept = pooled.detach().sum(dim=1).nonzero()[:, 0]  # as in OpenPCDet, a cell that adds up to 0 counts as empty
        return Cells(cells.cell[kept], pooled[kept], cells.pool(point_features.float(), "max")[kept])


def _cell_layers(in_channels: int, out_channels: int) -> SparseSequential:
    """Two convolutions over the cells with points."""
    return SparseSequential(
        sparse_block(SubMConv3d, in_channels, 64, indice_key="rcnn_subm"),
        sparse_block(SubMConv3d, 64, out_channels, indice_key="rcnn_subm"),
    )


def _corner_cells(cells: Cells, rows: int) -> Cells:
    """The first cell of each proposal, with the features it has, else zeros: norms need cells to work on."""
    first = (cells.index[:, 1:] == 0).all(dim=1)  # (S,)
    owner = cells.index[first, 0]
    index = torch.zeros(rows, 4, dtype=torch.int64, device=cells.index.device)
    index[:, 0] = torch.arange(rows, device=index.device)

    def spread(features: Tensor) -> Tensor:  # (S, C) -> (rows, C)
        return features.new_zeros(rows, features.shape[1]).index_copy(0, owner, features[first])

    return Cells(index, spread(cells.parts), spread(cells.features))
