"""Refinement of proposals from the points inside them (Shi et al. 2019, "PointRCNN", sec. 3.2 and 3.3)."""

from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pcdet.layers.fc import RowNorm, conv1d_stack, init_xavier
from pcdet.layers.msg_set_abstraction import GlobalSetAbstraction, MSGSetAbstraction
from pcdet.layers.row_mlp import RowConv2d
from pcdet.models.assigners.proposal_targets import RoiTargetConfig
from pcdet.models.registry import ROI_HEADS
from pcdet.models.roi_heads.base import RoiHead, RoiLossConfig, RoiPreds
from pcdet.models.roi_heads.proposals import ProposalNms
from pcdet.ops.roipoint_pool import roipoint_pool3d
from pcdet.structures.dataset_info import DatasetInfo

PREFIX = 5  # columns of a pooled point before its feature: x y z, score, depth
OUTSIDE = 1e6  # metres: where points that only pad a scene lie


class RoiPointPool(TypedDict):
    """The block ROI_POINT_POOL."""

    POOL_EXTRA_WIDTH: list[float]  # metres by which a proposal is enlarged along its x y z
    NUM_SAMPLED_POINTS: int  # of each proposal
    DEPTH_NORMALIZER: float  # metres from the sensor that count as 1


class RoiSaConfig(TypedDict):
    """The block SA_CONFIG: one entry a level; the last level, over all points, has -1 NPOINTS and no use for a ball."""

    NPOINTS: list[int]  # centres
    RADIUS: list[float]  # metres
    NSAMPLE: list[int]  # neighbours of a centre
    MLPS: list[list[int]]


@ROI_HEADS.register
class PointRCNNHead(RoiHead):
    """Describes a proposal by its points, seen from the proposal's own frame, through a small PointNet++.

    A point brings its place in that frame, the confidence of the point head, its distance from the sensor (which the
    frame hides), and its feature. No gradient flows back into these. A proposal without points is described by zeros.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        roi_point_pool: RoiPointPool,
        xyz_up_layer: list[int],
        sa_config: RoiSaConfig,
        cls_fc: list[int],
        reg_fc: list[int],
        class_agnostic: bool,
        nms_config: ProposalNms,
        target_config: RoiTargetConfig,
        loss_config: RoiLossConfig,
        dp_ratio: float = 0.0,
        use_bn: bool = False,
    ):
        super().__init__(
            info,
            class_agnostic=class_agnostic,
            nms_config=nms_config,
            target_config=target_config,
            loss_config=loss_config,
        )
        self.pool = roi_point_pool
        width = xyz_up_layer[-1]
        if channels["point_features"] != width:
            raise ValueError(
                f"XYZ_UP_LAYER must end with the {channels['point_features']} channels of point_features, not {width}"
            )
        # Registered first, as in OpenPCDet: the order of the parameters is that of an optimiser's state.
        self.SA_modules = _levels(sa_config, width)
        self.xyz_up_layer = _row_layers([PREFIX, *xyz_up_layer], use_bn)
        self.merge_down_layer = _row_layers([2 * width, width], use_bn)
        width = self.SA_modules[-1].out_channels
        self.cls_layers = conv1d_stack(width, cls_fc, 1, dropout=dp_ratio)
        self.reg_layers = conv1d_stack(width, reg_fc, self.coder.code_size, dropout=dp_ratio)
        init_xavier(self)
        nn.init.normal_(self.reg_layers[-1].weight, std=0.001)

    def forward(
        self,
        rois: Tensor,  # (B, R, 7)
        point_coords: Tensor,  # (N, 4) scene, x, y, z
        point_features: Tensor,  # (N, C)
        point_cls_scores: Tensor,  # (N,) in [0, 1]
    ) -> RoiPreds:
        pooled = self._pool(rois, point_coords, point_features, point_cls_scores)  # (B * R, S, 5 + C)
        rows = pooled.flatten(0, 1)
        rows = torch.cat([self.xyz_up_layer(rows[:, :PREFIX]), rows[:, PREFIX:]], dim=1)  # (B * R * S, 2 * C)
        points = pooled[..., :3].contiguous()  # (B * R, S, 3)
        features = self.merge_down_layer(rows).view(*points.shape[:2], -1)  # (B * R, S, C)
        for level in self.SA_modules[:-1]:
            points, features = level(points, features)
        features = self.SA_modules[-1](points, features)  # (B * R, C')
        return RoiPreds(self.cls_layers(features), self.reg_layers(features))

    @torch.no_grad()
    def _pool(self, rois: Tensor, coords: Tensor, features: Tensor, scores: Tensor) -> Tensor:
        """Points of each proposal in its own frame, (B * R, S, 5 + C): x y z, score, depth, feature."""
        counts = torch.bincount(coords[:, 0].long(), minlength=len(rois)).tolist()
        depth = coords[:, 1:4].norm(dim=1) / self.pool["DEPTH_NORMALIZER"] - 0.5
        columns = torch.cat([scores[:, None].float(), depth[:, None], features.float()], dim=1)  # (N, 2 + C)
        pooled, empty = roipoint_pool3d(
            _by_scene(coords[:, 1:4], counts, OUTSIDE),  # (B, n, 3)
            _by_scene(columns, counts, 0.0),  # (B, n, 2 + C)
            rois,
            self.pool["POOL_EXTRA_WIDTH"],
            self.pool["NUM_SAMPLED_POINTS"],
        )  # (B, R, S, 5 + C), (B, R)
        x, y, z = (pooled[..., :3] - rois[:, :, None, :3]).unbind(-1)  # (B, R, S)
        cos, sin = rois[..., 6:7].cos(), rois[..., 6:7].sin()  # (B, R, 1)
        own = torch.stack([x * cos + y * sin, y * cos - x * sin, z], dim=-1)  # (B, R, S, 3)
        pooled[..., :3] = own * (empty == 0)[..., None, None]
        return pooled.flatten(0, 1)


def _levels(config: RoiSaConfig, width: int) -> nn.ModuleList:
    keys = ("NPOINTS", "RADIUS", "NSAMPLE", "MLPS")
    levels = list(zip(*(config[key] for key in keys), strict=False))
    if {len(config[key]) for key in keys} != {len(levels)} or not levels:
        raise ValueError(f"SA_CONFIG's lists need one entry a level, but have {[len(config[key]) for key in keys]}")
    if [level[0] == -1 for level in levels] != [False] * (len(levels) - 1) + [True]:
        raise ValueError(f"SA_CONFIG.NPOINTS must be -1 on the last level and on no other, but is {config['NPOINTS']}")
    modules = nn.ModuleList()
    for centres, radius, count, mlp in levels[:-1]:
        modules.append(MSGSetAbstraction(width, centres, [radius], [count], [mlp]))
        width = mlp[-1]
    modules.append(GlobalSetAbstraction(width, levels[-1][-1]))
    return modules


def _row_layers(channels: list[int], use_bn: bool) -> nn.Sequential:
    """Convolution, norm where wanted, and ReLU of each layer, on rows."""
    layers: list[nn.Module] = []
    for width_in, width_out in zip(channels[:-1], channels[1:], strict=True):
        layers.append(RowConv2d(width_in, width_out, bias=not use_bn))
        layers += [RowNorm(width_out)] * use_bn + [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _by_scene(rows: Tensor, counts: list[int], padding: float) -> Tensor:
    """(N, C) -> (B, n, C), n being the size of the largest scene."""
    if len(set(counts)) == 1:
        return rows.reshape(len(counts), counts[0], rows.shape[1])
    return pad_sequence(rows.split(counts), batch_first=True, padding_value=padding)
