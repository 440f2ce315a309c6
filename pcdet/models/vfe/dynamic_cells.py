"""What the dynamic encoders share: which cell every point lies in, and a layer that takes maxima over the cells.

"Dynamic" means that no cell or point is dropped or padded (Zhou et al., "End-to-End Multi-View Fusion for 3D Object
Detection in LiDAR Point Clouds", sec. 3.1).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.row_norm import RowNorm
from pcdet.ops.dynamic_voxels import dynamic_voxels
from pcdet.ops.scatter import pool_rows
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.constants import constant


class PointCells(NamedTuple):
    """Points inside the grid, and the cells that hold at least one of them."""

    points: Tensor  # (N', 1 + C) scene, x, y, z, ...; in their order
    places: Tensor  # (N', D) int64; the cell of each along x, y (, z)
    cell: Tensor  # (N',) int64; its row in ``coords``
    coords: Tensor  # (V, 1 + D) int32; scene, (z,) y, x, sorted by scene, x, y (, z)
    rows: Tensor  # (N',) int64; the points cell by cell
    start: Tensor  # (V + 1,) int64; where each cell begins in ``rows``

    def offsets(self, info: DatasetInfo) -> Tensor:
        """Each point's offset from the centre of its cell in metres, (N', 3); of a pillar, from half of one z cell."""
        size = constant(info.voxel_size, self.points)
        first = size / 2 + constant(info.point_cloud_range[:3], self.points)  # (3,) centre of the first cell
        steps = F.pad(self.places, (0, 3 - self.places.shape[1])).to(self.points.dtype)  # (N', 3)
        return self.points[:, 1:4] - (steps * size + first)


def cells_of(points: Tensor, info: DatasetInfo, axes: int) -> PointCells:
    """The cells of points (N, 1 + C) of a batch, along x and y (``axes`` 2: pillars of any height) or x, y, z (3).

    Points outside the grid along these axes are left out. The arithmetic is float32, as in the published code, so that
    points on a border fall on the same side of it.
    """
    low, size, grid = (part[:axes] for part in (info.point_cloud_range, info.voxel_size, info.grid_size))
    found = dynamic_voxels(points, [float(v) for v in low], [float(v) for v in size], [int(v) for v in grid])
    scene, *places = found.coords.unbind(dim=1)
    coords = torch.stack([scene, *reversed(places)], dim=1).int()  # (V, 1 + D)
    inside = points.index_select(0, found.kept)
    return PointCells(inside, found.coords[:, 1:][found.cell], found.cell, coords, found.rows, found.start)


class CellFeatureLayer(nn.Module):
    """A linear layer over points, norm, ReLU, and the maximum over each cell (PointPillars, sec. 2.1).

    Any layer but the last appends the maximum to every point's own features, which therefore get half the channels.
    """

    def __init__(self, in_channels: int, out_channels: int, use_norm: bool, last: bool):
        super().__init__()
        self.last = last
        width = out_channels if last else out_channels // 2
        self.linear = nn.Linear(in_channels, width, bias=not use_norm)
        self.norm = RowNorm(width, eps=1e-3, momentum=0.01) if use_norm else None

    def forward(
        self,
        features: Tensor,  # (N', C)
        cells: PointCells,
    ) -> Tensor:
        """-> (V, C') for the last layer, else (N', C')."""
        x = self.linear(features)  # (N', C')
        if self.norm is not None:
            x = self.norm(x)
        x = F.relu(x)
        highest = cell_max(x, cells)  # (V, C')
        if self.last:
            return highest
        return torch.cat([x, highest[cells.cell]], dim=1)


def cell_feature_layers(in_channels: int, num_filters: Sequence[int], use_norm: bool, who: str) -> nn.ModuleList:
    """One layer a width. Raises ``ValueError`` in the name of ``who`` where there is none."""
    if not num_filters:
        raise ValueError(f"{who}: NUM_FILTERS is empty; it needs the width of at least one layer")
    pairs = zip([in_channels, *num_filters[:-1]], num_filters, strict=True)
    last = len(num_filters) - 1
    return nn.ModuleList(CellFeatureLayer(a, b, use_norm, last=i == last) for i, (a, b) in enumerate(pairs))


def cell_max(features: Tensor, cells: PointCells) -> Tensor:
    """The largest features of each cell. (N', C) -> (V, C)"""
    return pool_rows(features, cells.rows, cells.start, "max")


def cell_mean(features: Tensor, cells: PointCells) -> Tensor:
    """The mean features of each cell. (N', C) -> (V, C)"""
    return pool_rows(features, cells.rows, cells.start, "mean")
