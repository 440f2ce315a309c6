"""Refinement of proposals from the points inside them (Shi et al. 2019, "PointRCNN", sec. 3.2 and 3.3)."""

from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pcdet.layers.fc import conv1d_stack, init_xavier
from pcdet.layers.msg_set_abstraction import GlobalSetAbstraction, MSGSetAbstraction
from pcdet.layers.row_mlp import RowConv2d
from pcdet.layers.row_norm import RowNorm
from pcdet.layers.weighted_norm import run_weighted
from pcdet.models.assigners.proposal_targets import RoiTargetConfig
from pcdet.models.registry import ROI_HEADS
from pcdet.models.roi_heads.base import RoiHead, RoiLossConfig, RoiPreds
from pcdet.models.roi_heads.proposals import ProposalNms
from pcdet.ops.roipoint_pool import roipoint_query
from pcdet.structures.batch import scene_counts
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

    NUM_SAMPLED_POINTS points are taken from a proposal, repeated in turn if there are fewer. Equal rows that this
    makes, at any level, are computed once and weighted where batch norms count them.

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
        self.npoints = sa_config["NPOINTS"]
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
        rows, counts = self._pool(rois, point_coords, point_features, point_cls_scores)  # (D, 5 + C), (B * R,)
        cycle = self.pool["NUM_SAMPLED_POINTS"]
        weight = _copies(counts, cycle, len(rows))  # (D,)
        xyz, own = rows[:, :3].contiguous(), run_weighted(self.xyz_up_layer, rows[:, :PREFIX], weight)  # (D, C)
        features = run_weighted(self.merge_down_layer, torch.cat([own, rows[:, PREFIX:]], dim=1), weight)  # (D, C)
        for level, wanted in zip(self.SA_modules[:-1], self.npoints, strict=False):
            samples = counts.clamp(max=wanted)  # (B * R,)
            weight = _fill(samples, wanted)  # (M,)
            xyz, features = level(xyz, counts, features, samples, weight=weight, cycle=cycle)
            counts, cycle = samples, None
        features = self.SA_modules[-1](xyz, counts, features, weight)  # (B * R, C')
        return RoiPreds(self.cls_layers(features), self.reg_layers(features))

    @torch.no_grad()
    def _pool(self, rois: Tensor, coords: Tensor, features: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The different points of each proposal in its own frame, proposal after proposal, and their number.

        Rows (D, 5 + C) are x y z, score, depth, feature; the numbers (B * R,) are at least 1, because a proposal
        without points has one of zeros.
        """
        sizes = scene_counts(coords[:, 0], len(rois))  # (B,)
        clouds = _by_scene(coords[:, 1:4], sizes.tolist())  # (B, n, 3)
        index, empty = roipoint_query(
            clouds, rois, self.pool["POOL_EXTRA_WIDTH"], self.pool["NUM_SAMPLED_POINTS"]
        )  # (B, R, S), (B, R)
        rising = (index[..., 1:] > index[..., :-1]).long().cumprod(dim=-1)  # from the first fall on they repeat
        counts = 1 + rising.sum(dim=-1)  # (B, R)
        keep = torch.arange(index.shape[-1], device=index.device) < counts.unsqueeze(-1)  # (B, R, S)
        scene, roi, place = keep.nonzero(as_tuple=True)  # (D,)
        held = (~empty[scene, roi]).nonzero()[:, 0]  # (H,)
        point = (index[scene, roi, place] + (sizes.cumsum(0) - sizes)[scene])[held]  # rows of coords
        rows = features.new_zeros(len(scene), PREFIX + features.shape[1], dtype=coords.dtype)
        rows[held, :3] = _own_frame(coords[point, 1:4], rois[scene, roi][held])
        rows[held, 3] = scores[point].to(rows.dtype)
        rows[held, 4] = coords[point, 1:4].norm(dim=1) / self.pool["DEPTH_NORMALIZER"] - 0.5
        rows[held, PREFIX:] = features[point].to(rows.dtype)
        return rows, counts.flatten()


def _own_frame(xyz: Tensor, rois: Tensor) -> Tensor:
    """Points (D, 3) seen from the box (D, 7) of each."""
    x, y, z = (xyz - rois[:, :3]).unbind(1)
    cos, sin = rois[:, 6].cos(), rois[:, 6].sin()
    return torch.stack([x * cos + y * sin, y * cos - x * sin, z], dim=1)


def _copies(counts: Tensor, total: int, rows: int) -> Tensor:
    """How often each point occurs where those of every proposal (B * R,) are repeated in turn up to ``total``. (D,)"""
    length = counts.repeat_interleave(counts, output_size=rows)  # (D,)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts, output_size=rows)  # (D,)
    place = torch.arange(rows, device=counts.device) - first
    return total // length + (place < total % length)


def _fill(counts: Tensor, total: int) -> Tensor:
    """How many of ``total`` centres each one is, where the first of every proposal fills up for the missing. (M,)"""
    weight = counts.new_ones(int(counts.sum()))
    weight[counts.cumsum(0) - counts] += total - counts
    return weight


def _levels(config: RoiSaConfig, width: int) -> nn.ModuleList:
    keys = ("NPOINTS", "RADIUS", "NSAMPLE", "MLPS")
    levels = list(zip(*(config[key] for key in keys), strict=False))
    if {len(config[key]) for key in keys} != {len(levels)} or not levels:
        raise ValueError(f"SA_CONFIG's lists need one entry a level, but have {[len(config[key]) for key in keys]}")
    if [level[0] == -1 for level in levels] != [False] * (len(levels) - 1) + [True]:
        raise ValueError(f"SA_CONFIG.NPOINTS must be -1 on the last level and on no other, but is {config['NPOINTS']}")
    modules = nn.ModuleList()
    for _, radius, count, mlp in levels[:-1]:
        modules.append(MSGSetAbstraction(width, [radius], [count], [mlp]))
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


def _by_scene(xyz: Tensor, counts: list[int]) -> Tensor:
    """(N, 3) -> (B, n, 3), n being the size of the largest scene; what pads the others is in no box."""
    if len(set(counts)) == 1:
        return xyz.reshape(len(counts), counts[0], 3)
    return pad_sequence(xyz.split(counts), batch_first=True, padding_value=OUTSIDE)
