"""Features of pillars with no limit to points or pillars (Zhou et al., "End-to-End Multi-View Fusion", sec. 3.1)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pcdet.models.registry import VFES
from pcdet.models.vfe.dynamic_cells import PointCells, cell_feature_layers, cell_mean, cells_of
from pcdet.structures.dataset_info import DatasetInfo


class DynamicPillars(NamedTuple):
    """What the encoder adds to the batch. Pillars come sorted by scene, x, y."""

    pillar_features: Tensor  # (V, C)
    voxel_features: Tensor  # the same, under the name that sparse backbones read
    voxel_coords: Tensor  # (V, 4) int32; scene, z (always 0), y, x


@VFES.register
class DynPillarVFE(nn.Module):
    """A pillar's feature from all of its points and their offsets to the points' mean and to the pillar's centre.

    As :class:`pcdet.models.vfe.pillar_vfe.PillarVFE`, on pillars made here: none is dropped, and there is no padding
    that would count in the statistics of the norm. Points of any height belong to a pillar; the offset along z is that
    from the centre of the grid's lowest cell. ``use_abslote_xyz`` (sic) keeps the coordinates themselves,
    ``with_distance`` adds the distance from the sensor, ``num_filters`` are the widths of the layers.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        num_filters: Sequence[int],
        use_norm: bool = True,
        with_distance: bool = False,
        use_abslote_xyz: bool = True,
    ):
        super().__init__()
        self.info = info
        self.with_distance = with_distance
        self.use_absolute_xyz = use_abslote_xyz
        width = channels["points"] + (6 if use_abslote_xyz else 3) + int(with_distance)
        self.pfn_layers = cell_feature_layers(width, num_filters, use_norm, "DynPillarVFE")
        self.out_channels = {"pillar_features": num_filters[-1], "voxel_features": num_filters[-1]}

    def forward(
        self,
        points: Tensor,  # (N, 1 + C) scene, x, y, z, ...
    ) -> DynamicPillars:
        cells = cells_of(points, self.info, axes=2)
        x = self._decorate(cells)  # (N', C')
        for layer in self.pfn_layers:
            x = layer(x, cells)
        scene, y, x_cell = cells.coords.unbind(1)  # (V,)
        coords = torch.stack([scene, torch.zeros_like(scene), y, x_cell], dim=1)  # (V, 4)
        return DynamicPillars(x, x, coords)

    def _decorate(self, cells: PointCells) -> Tensor:
        """The points with their offsets (PointPillars, sec. 2.1). -> (N', C')"""
        xyz = cells.points[:, 1:4]
        centred = xyz - cell_mean(xyz, cells)[cells.cell]
        parts = [cells.points[:, 1 if self.use_absolute_xyz else 4 :], centred, cells.offsets(self.info)]
        if self.with_distance:
            parts.append(xyz.norm(dim=1, keepdim=True))
        return torch.cat(parts, dim=1)
