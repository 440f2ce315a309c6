"""Voxel features by averaging, with no limit to points or voxels (Zhou et al., "End-to-End Multi-View Fusion")."""

from typing import NamedTuple

from torch import Tensor, nn

from pcdet.models.registry import VFES
from pcdet.models.vfe.dynamic_cells import cell_mean, cells_of
from pcdet.structures.dataset_info import DatasetInfo


class DynamicVoxels(NamedTuple):
    """What the encoder adds to the batch. Voxels come sorted by scene, x, y, z."""

    voxel_features: Tensor  # (V, C)
    voxel_coords: Tensor  # (V, 4) int32; scene, z, y, x


@VFES.register
class DynMeanVFE(nn.Module):
    """A voxel's feature is the mean of all its points; those outside the grid belong to none."""

    def __init__(self, info: DatasetInfo, channels: dict[str, int]):
        super().__init__()
        self.info = info
        self.out_channels = {"voxel_features": channels["points"]}

    def forward(
        self,
        points: Tensor,  # (N, 1 + C) scene, x, y, z, ...
    ) -> DynamicVoxels:
        cells = cells_of(points, self.info, axes=3)
        return DynamicVoxels(cell_mean(cells.points[:, 1:], cells), cells.coords)
