"""Voxel features by averaging."""

from typing import NamedTuple

from torch import Tensor, nn

from pcdet.models.registry import VFES
from pcdet.structures.dataset_info import DatasetInfo


class MeanVoxelFeatures(NamedTuple):
    """What the encoder adds to the batch."""

    voxel_features: Tensor  # (V, C)


@VFES.register
class MeanVFE(nn.Module):
    """A voxel's feature is the mean of its points (the simple encoder of SECOND's later versions)."""

    def __init__(self, info: DatasetInfo, channels: dict[str, int]):
        super().__init__()
        self.out_channels = {"voxel_features": info.num_point_features}

    def forward(
        self,
        voxels: Tensor,  # (V, P, C) zero-padded
        voxel_num_points: Tensor,  # (V,)
    ) -> MeanVoxelFeatures:
        count = voxel_num_points.clamp(min=1).unsqueeze(1).to(voxels.dtype)  # (V, 1)
        return MeanVoxelFeatures(voxels.sum(dim=1) / count)
