"""Features of pillars with no limit to points or pillars (Shi et al., "PillarNet", sec. 3.2, the encoder)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pcdet.models.registry import VFES
from pcdet.models.vfe.dynamic_cells import PointCells, cell_feature_layers, cell_mean, cells_of
from pcdet.structures.dataset_info import DatasetInfo


class FlatPillars(NamedTuple):
    """What the encoder adds to the batch."""

    pillar_features: Tensor  # (V, C)
    pillar_coords: Tensor  # (V, 3) int32; scene, y, x


@VFES.register
class DynamicPillarVFESimple2D(nn.Module):
    """A pillar's feature from its points and their offsets to its centre.

    Pillars come sorted by scene, x, y. The offset along z is that from the centre of the grid's lowest cell, as in the
    published code. ``use_abslote_xyz`` (sic) keeps the coordinates themselves, ``use_cluster_xyz`` adds the offsets to
    the points' mean, ``with_distance`` the distance from the sensor; ``num_filters`` are the widths of the layers.
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
        use_cluster_xyz: bool = True,
    ):
        super().__init__()
        self.info = info
        self.with_distance = with_distance
        self.use_absolute_xyz = use_abslote_xyz
        self.use_cluster_xyz = use_cluster_xyz
        width = channels["points"] + 3 * use_abslote_xyz + 3 * use_cluster_xyz + with_distance
        self.pfn_layers = cell_feature_layers(width, num_filters, use_norm, "DynamicPillarVFESimple2D")
        self.out_channels = {"pillar_features": num_filters[-1]}

    def forward(
        self,
        points: Tensor,  # (N, 1 + C) scene, x, y, z, ...
    ) -> FlatPillars:
        cells = cells_of(points, self.info, axes=2)
        x = self._decorate(cells)  # (N', C')
        for layer in self.pfn_layers:
            x = layer(x, cells)
        return FlatPillars(x, cells.coords)

    def _decorate(self, cells: PointCells) -> Tensor:
        xyz = cells.points[:, 1:4]
        parts = [cells.offsets(self.info), cells.points[:, 1 if self.use_absolute_xyz else 4 :]]
        if self.use_cluster_xyz:
            parts.append(xyz - cell_mean(xyz, cells)[cells.cell])
        if self.with_distance:
            parts.append(xyz.norm(dim=1, keepdim=True))
        return torch.cat(parts, dim=1)
