"""Pillars back at their places (Lang et al., "PointPillars", sec. 2.1, the pseudo-image)."""

from typing import NamedTuple

from torch import Tensor, nn

from pcdet.models.registry import MAPS_TO_BEV
from pcdet.structures.dataset_info import DatasetInfo


class PillarImage(NamedTuple):
    """What the scatter adds to the batch."""

    spatial_features: Tensor  # (B, C, Y, X)


@MAPS_TO_BEV.register
class PointPillarScatter(nn.Module):
    """Writes every pillar's features into a map that is zero elsewhere.

    ``num_bev_features`` is the number of the pillars' channels. Raises ``ValueError`` for another number, or for a
    grid with more than one cell along z.
    """

    def __init__(self, info: DatasetInfo, channels: dict[str, int], *, num_bev_features: int):
        super().__init__()
        if num_bev_features != channels["pillar_features"]:
            raise ValueError(
                f"PointPillarScatter: NUM_BEV_FEATURES is {num_bev_features}, but the pillars have "
                f"{channels['pillar_features']} channels"
            )
        self.nx, self.ny, nz = info.grid_size
        if nz != 1:
            raise ValueError(
                f"PointPillarScatter: the grid has {nz} cells along z, pillars need exactly one; make the z part of "
                f"VOXEL_SIZE {list(info.voxel_size)} as high as POINT_CLOUD_RANGE {list(info.point_cloud_range)}"
            )
        self.out_channels = {"spatial_features": num_bev_features}

    def forward(
        self,
        pillar_features: Tensor,  # (V, C)
        voxel_coords: Tensor,  # (V, 4) scene, z, y, x
        batch_size: int,
    ) -> PillarImage:
        scene, y, x = voxel_coords[:, [0, 2, 3]].long().unbind(1)
        image = pillar_features.new_zeros(batch_size, pillar_features.shape[1], self.ny * self.nx)
        image[scene, :, y * self.nx + x] = pillar_features
        return PillarImage(image.view(batch_size, -1, self.ny, self.nx))
