"""Features of the voxels around points (Deng et al., "Voxel R-CNN", 2021, sec. 3.2 and 3.3)."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.fc import RowConv1d
from pcdet.layers.row_mlp import RowConv2d
from pcdet.layers.row_norm import RowNorm
from pcdet.layers.sparse import SparseConvTensor
from pcdet.layers.stacked_set_abstraction import Neighbours, distinct_neighbours
from pcdet.layers.weighted_norm import normalise_rows
from pcdet.ops.grouping import group_rows
from pcdet.ops.voxel_query import voxel_query

PoolMethod = Literal["max_pool", "avg_pool"]


class NeighborVoxelSAModuleMSG(nn.Module):
    """Describe each point by the voxels around it, at several ranges: voxel query, accelerated PointNet, pooling.

    A neighbour enters as the sum of its features and of its offset from the point, each behind a linear layer and a
    norm of its own; so the features' layer runs once a voxel instead of once a neighbour. Where there is no
    neighbour, features and offset are zero. Names and shapes of the parameters are OpenPCDet's.

    Args:
        in_channels: C, features of a voxel.
        query_ranges: cells to look to either side along z, y, x, one triple a scale.
        radii: in metres; a voxel whose centre lies on the border is inside.
        nsamples: G, neighbours of a point: the first ones in ascending order of z, y, x.
        mlps: two widths a scale, of a neighbour's features and of the pooled ones.
        pool_method: over the G places, in which the first neighbour fills those that are left.

    Raises ``ValueError`` where the scales do not agree in number or an MLP has not two widths.
    """

    def __init__(
        self,
        in_channels: int,
        query_ranges: Sequence[Sequence[int]],
        radii: Sequence[float],
        nsamples: Sequence[int],
        mlps: Sequence[Sequence[int]],
        pool_method: PoolMethod = "max_pool",
    ):
        super().__init__()
        if not len(query_ranges) == len(radii) == len(nsamples) == len(mlps):
            raise ValueError(
                f"every scale needs a query range, a radius, a number of samples and an MLP; there are "
                f"{len(query_ranges)}, {len(radii)}, {len(nsamples)} and {len(mlps)} of them"
            )
        if any(len(widths) != 2 for widths in mlps):
            raise ValueError(f"an MLP over neighbouring voxels has two widths, not {[list(widths) for widths in mlps]}")
        self.scales = list(zip(query_ranges, radii, nsamples, strict=True))
        self.pool_method = pool_method
        self.out_channels = sum(after for _, after in mlps)
        self.mlps_in = nn.ModuleList(_linear(RowConv1d, in_channels, inner) for inner, _ in mlps)
        self.mlps_pos = nn.ModuleList(_linear(RowConv2d, 3, inner) for inner, _ in mlps)
        self.mlps_out = nn.ModuleList(_linear(RowConv1d, inner, after).append(nn.ReLU()) for inner, after in mlps)
        for layer in self.modules():
            if isinstance(layer, nn.Conv1d | nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)

    def forward(
        self,
        voxels: SparseConvTensor,  # V voxels with C features
        voxel_centres: Tensor,  # (V, 3) x y z in metres
        points: Tensor,  # (M, 3)
        point_coords: Tensor,  # (M, 4) scene z y x: the cell of each, which may lie outside the grid
    ) -> Tensor:
        """-> (M, C'), the scales side by side."""
        grid = voxels.indices, voxel_centres, voxels.spatial_shape, voxels.batch_size
        pooled = []
        for i, (ranges, radius, size) in enumerate(self.scales):
            index, found = voxel_query(*grid, points, point_coords, ranges, radius, size)  # (M, G), (M,)
            pairs = distinct_neighbours(index, found, len(voxel_centres))
            offset = F.pad(voxel_centres, (0, 0, 0, 1))[pairs.point] - points[pairs.centre]  # (R, 3)
            offset = offset * (pairs.point < len(voxel_centres)).unsqueeze(1)
            linear, norm = self.mlps_pos[i]
            place = normalise_rows(linear(offset), pairs.weight, norm)  # (R, C1)
            features = F.pad(self.mlps_in[i](voxels.features), (0, 0, 0, 1))  # (V + 1, C1), zero for no voxel
            rows = torch.relu(place + group_rows(features, pairs.point.unsqueeze(1))[:, 0])
            pooled.append(self.mlps_out[i](self._pool(rows, pairs, size)))
        return torch.cat(pooled, dim=1)

    def _pool(self, rows: Tensor, pairs: Neighbours, size: int) -> Tensor:
        """Over the ``size`` places of each point. (R, C) -> (M, C)"""
        if self.pool_method == "max_pool":
            return torch.segment_reduce(rows.float(), "max", lengths=pairs.per_centre, unsafe=True)
        share = (pairs.weight / size).unsqueeze(1)  # (R, 1)
        return torch.segment_reduce(rows.float() * share, "sum", lengths=pairs.per_centre, unsafe=True)


def _linear(kind: type[nn.Module], in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(kind(in_channels, out_channels, bias=False), RowNorm(out_channels))
