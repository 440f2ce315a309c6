"""Refines proposals by the features of sparse voxels around a grid of points (Deng et al., "Voxel R-CNN", 2021)."""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from pcdet.layers.fc import conv1d_stack, init_xavier
from pcdet.layers.sparse import SparseConvTensor
from pcdet.layers.voxel_pool import NeighborVoxelSAModuleMSG, PoolMethod
from pcdet.models.registry import ROI_HEADS
from pcdet.models.roi_heads.base import RoiHead, RoiLossConfig, RoiPreds, RoiTargetConfig
from pcdet.models.roi_heads.grid_points import roi_grid_points
from pcdet.models.roi_heads.proposals import ProposalNms
from pcdet.models.voxel_centres import voxel_centres
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.constants import constant

FAR = 1e6  # cells; a grid point beyond, of a proposal that has gone astray, has no neighbours either


class VoxelPoolLayer(TypedDict):
    """How one level of the backbone is pooled; see :class:`~pcdet.layers.voxel_pool.NeighborVoxelSAModuleMSG`."""

    MLPS: list[list[int]]
    QUERY_RANGES: list[list[int]]
    POOL_RADIUS: list[float]
    NSAMPLE: list[int]
    POOL_METHOD: PoolMethod


class VoxelGridPoolOptions(TypedDict, total=False):
    """What may be left out. PRE_MLP is in OpenPCDet's YAML files and changes nothing: the layer it names is always
    there."""

    PRE_MLP: bool


class VoxelGridPool(VoxelGridPoolOptions):
    """The block ROI_GRID_POOL."""

    FEATURES_SOURCE: list[str]  # levels of the backbone, such as x_conv2
    GRID_SIZE: int  # points along each axis of a proposal
    POOL_LAYERS: dict[str, VoxelPoolLayer]  # one a level


@ROI_HEADS.register
class VoxelRCNNHead(RoiHead):
    """A grid of points in each proposal describes the voxels around it; fully connected layers see all of them.

    The gradient reaches the backbone through the voxels' features.
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
        roi_grid_pool: VoxelGridPool,
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
        self.info = info
        self.sources, self.grid_size = tuple(roi_grid_pool["FEATURES_SOURCE"]), roi_grid_pool["GRID_SIZE"]
        self.roi_grid_pool_layers = _pool_layers(self.sources, channels, roi_grid_pool["POOL_LAYERS"])
        self.width = width = self.grid_size**3 * sum(layer.out_channels for layer in self.roi_grid_pool_layers)
        self.shared_fc_layer = conv1d_stack(width, shared_fc, dropout=dp_ratio, layer=nn.Linear)
        width = shared_fc[-1] if shared_fc else width
        self.cls_fc_layers = conv1d_stack(width, cls_fc, dropout=dp_ratio, layer=nn.Linear)
        self.cls_pred_layer = nn.Linear(cls_fc[-1] if cls_fc else width, 1)
        self.reg_fc_layers = conv1d_stack(width, reg_fc, dropout=dp_ratio, layer=nn.Linear)
        self.reg_pred_layer = nn.Linear(reg_fc[-1] if reg_fc else width, self.coder.code_size)
        for layers in (self.shared_fc_layer, self.cls_fc_layers, self.reg_fc_layers):
            init_xavier(layers)
        for layer, std in ((self.cls_pred_layer, 0.01), (self.reg_pred_layer, 0.001)):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        rois: Tensor,  # (B, R, 7)
        multi_scale_3d_features: dict[str, SparseConvTensor],
        multi_scale_3d_strides: dict[str, int],
    ) -> RoiPreds:
        pooled = self._pool(rois.detach().float(), multi_scale_3d_features, multi_scale_3d_strides)  # (B * R, G^3 * C)
        shared = self.shared_fc_layer(pooled)
        classes = self.cls_pred_layer(self.cls_fc_layers(shared))
        return RoiPreds(classes, self.reg_pred_layer(self.reg_fc_layers(shared)))

    def _pool(self, rois: Tensor, features: dict[str, SparseConvTensor], strides: dict[str, int]) -> Tensor:
        scenes, rows = rois.shape[:2]
        points = roi_grid_points(rois.view(scenes * rows, 7), self.grid_size).flatten(0, 1)  # (B * R * G^3, 3)
        cells = self._cells(points)  # (B * R * G^3, 3) z, y, x
        scene = (
            torch.arange(len(points), device=rois.device)
            .div(rows * self.grid_size**3, rounding_mode="floor")
            .unsqueeze(1)
        )
        levels = []
        for source, layer in zip(self.sources, self.roi_grid_pool_layers, strict=True):
            voxels, stride = features[source], strides[source]
            centres = voxel_centres(voxels.indices[:, 1:], self.info, stride)  # (V, 3)
            coords = torch.cat([scene, (cells // stride).long()], dim=1)  # (B * R * G^3, 4)
            levels.append(layer(voxels, centres, points, coords))
        return torch.cat(levels, dim=1).view(scenes * rows, self.width)

    def _cells(self, points: Tensor) -> Tensor:
        """The voxels that points (M, 3) lie in, which may be outside the grid. -> (M, 3) z, y, x, whole float32 numbers

        By floor division in float32, as OpenPCDet does: at the border of a cell it may differ from the voxelizer.
        """
        low, size = constant(self.info.point_cloud_range[:3], points), constant(self.info.voxel_size, points)
        return ((points - low) // size).flip(1).nan_to_num(nan=FAR).clamp(-FAR, FAR)


def _pool_layers(sources: Sequence[str], channels: dict[str, int], configs: dict[str, VoxelPoolLayer]) -> nn.ModuleList:
    """One layer a level of the backbone. Raises ``ValueError`` for a level without a block."""
    layers = nn.ModuleList()
    for source in sources:
        if source not in configs:
            raise ValueError(
                f"VoxelRCNNHead: ROI_GRID_POOL.FEATURES_SOURCE names {source}, POOL_LAYERS has only {sorted(configs)}"
            )
        config = configs[source]
        scales = config["QUERY_RANGES"], config["POOL_RADIUS"], config["NSAMPLE"], config["MLPS"]
        layers.append(NeighborVoxelSAModuleMSG(channels[source], *scales, config["POOL_METHOD"]))
    return layers
