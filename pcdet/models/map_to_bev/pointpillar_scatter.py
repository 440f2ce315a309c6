"""Pillars back at their places (Lang et al., "PointPillars", sec. 2.1, the pseudo-image)."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from pcdet.models.registry import MAPS_TO_BEV
from pcdet.ops.row_grid import rows_to_grid
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
        image = scatter_rows(pillar_features, voxel_coords, batch_size, (self.nx, self.ny, 1))
        return PillarImage(image.view(batch_size, -1, self.ny, self.nx))


@MAPS_TO_BEV.register
class PointPillarScatter3d(nn.Module):
    """Writes voxels into a grid with cells along z, which become channels: channel ``c * Z + z``.

    ``input_shape`` is the grid (x, y, z) of the voxels, ``num_bev_features`` channels times cells along z. Raises
    ``ValueError`` where these do not fit the features.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        input_shape: Sequence[int],
        num_bev_features: int,
    ):
        super().__init__()
        if len(input_shape) != 3:
            raise ValueError(f"PointPillarScatter3d: INPUT_SHAPE is {list(input_shape)}; it needs cells along x, y, z")
        if num_bev_features != channels["pillar_features"] * input_shape[2]:
            raise ValueError(
                f"PointPillarScatter3d: NUM_BEV_FEATURES is {num_bev_features}, but the features' "
                f"{channels['pillar_features']} channels times {input_shape[2]} cells along z (INPUT_SHAPE) are "
                f"{channels['pillar_features'] * input_shape[2]}"
            )
        self.grid = tuple(input_shape)
        self.out_channels = {"spatial_features": num_bev_features}

    def forward(
        self,
        pillar_features: Tensor,  # (V, C)
        voxel_coords: Tensor,  # (V, 4) scene, z, y, x
        batch_size: int,
    ) -> PillarImage:
        nx, ny, _ = self.grid
        image = scatter_rows(pillar_features, voxel_coords, batch_size, self.grid)
        return PillarImage(image.view(batch_size, -1, ny, nx))  # (B, C * Z, Y, X)


def scatter_rows(
    features: Tensor,  # (V, C)
    coords: Tensor,  # (V, 4) scene, z, y, x
    batch_size: int,
    grid: Sequence[int],  # cells along x, y, z
) -> Tensor:
    """Rows into a grid that is zero elsewhere. -> (B, C, Z * Y * X)"""
    nx, ny, nz = grid
    scene, z, y, x = coords.long().unbind(1)
    return rows_to_grid(features, scene, (z * ny + y) * nx + x, batch_size, nz * ny * nx)
