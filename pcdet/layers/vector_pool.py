"""Vector-pool aggregation (Shi et al., "PV-RCNN++", 2021, sec. 4.2).

The space around a centre is cut into a few cells, and each cell keeps its own place in one long vector, so that cells
can have weights of their own. Centres without any neighbour share one row of zeros.
"""

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.fc import conv1d_stack
from pcdet.layers.row_norm import RowNorm
from pcdet.layers.weighted_norm import run_weighted
from pcdet.ops.three_nn import three_interpolate
from pcdet.ops.vector_pool import local_three_nn, voxel_pool

EPSILON = 1e-8  # metres, added to a distance before it is inverted
SEARCH_FACTOR = 2.0  # neighbours to interpolate from may lie this many times farther off than a cell
CENTRES_AT_ONCE = 4096  # in evaluation: what they need stays within memory that is used again and again
CUBE = 0  # neighbours are those in a cube around the centre; the zoo has no other

AggregationType = Literal["local_interpolation", "voxel_avg_pool", "voxel_random_choice"]


class GroupedRowConv1d(nn.Conv1d):
    """A convolution with kernel 1 and one group a cell, applied to rows: its weight is that of ``nn.Conv1d``."""

    def __init__(self, cells: int, in_channels: int, out_channels: int):
        super().__init__(cells * in_channels, cells * out_channels, kernel_size=1, groups=cells, bias=False)

    def forward(self, rows: Tensor) -> Tensor:  # (R, T, I) -> (R, T * O)
        weight = self.weight.view(self.groups, -1, rows.shape[-1])  # (T, O, I)
        return torch.bmm(rows.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1).flatten(1)


class VectorPoolAggregationModule(nn.Module):
    """Describe the cells around each centre, weigh each by weights of its own, and mix them.

    Args:
        in_channels: C, features of a point besides x y z.
        num_local_voxel: cells along x, y, z.
        max_neighbor_distance: half the edge of the cube that the cells fill, in metres.
        neighbor_nsample: neighbours that are used at most, the first ones in row order; -1 for all.
        post_mlps: output channels of the layers after the cells' own.
        local_aggregation_type: a cell's features are interpolated between the three neighbours nearest to its centre
            (``local_interpolation``), or are the mean of the neighbours in it (``voxel_avg_pool``) or those of the
            first one (``voxel_random_choice``, which draws nothing in the published code).
        num_channels_of_local_aggregation: output channels of a cell's own layer.
        num_reduced_channels: features are folded to so many channels by addition; ``None`` leaves them.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        num_local_voxel: Sequence[int],
        max_neighbor_distance: float,
        neighbor_nsample: int,
        post_mlps: Sequence[int],
        local_aggregation_type: AggregationType,
        num_channels_of_local_aggregation: int,
        num_reduced_channels: int | None = None,
    ):
        super().__init__()
        self.reduced = in_channels if num_reduced_channels is None else num_reduced_channels
        if in_channels == 0 or self.reduced < 1 or in_channels % self.reduced:
            raise ValueError(
                f"NUM_REDUCED_CHANNELS is {self.reduced}, but must divide the {in_channels} channels of a point's "
                "features, of which there must be some"
            )
        self.num_local_voxel, self.max_distance = tuple(num_local_voxel), max_neighbor_distance
        self.num_samples, self.kind = neighbor_nsample, local_aggregation_type
        cells = num_local_voxel[0] * num_local_voxel[1] * num_local_voxel[2]
        coordinates = 9 if local_aggregation_type == "local_interpolation" else 3
        width = cells * num_channels_of_local_aggregation
        self.separate_local_aggregation_layer = nn.Sequential(
            GroupedRowConv1d(cells, self.reduced + coordinates, num_channels_of_local_aggregation),
            RowNorm(width),
            nn.ReLU(inplace=True),
        )
        self.post_mlps = conv1d_stack(width, post_mlps)
        self.out_channels = post_mlps[-1]
        self.register_buffer("cell_offsets", _cell_offsets(self.num_local_voxel, self.max_distance), persistent=False)
        for layer in self.modules():
            if isinstance(layer, nn.Conv1d):
                nn.init.kaiming_normal_(layer.weight)

    def forward(
        self,
        xyz: Tensor,  # (N, 3) scene after scene
        counts: Tensor,  # (B,) points of each scene
        centres: Tensor,  # (M, 3)
        centre_counts: Tensor,  # (B,)
        features: Tensor,  # (N, C)
    ) -> Tensor:
        """-> (M, C')"""
        features = features.unflatten(1, (-1, self.reduced)).sum(dim=1)  # (N, C of a cell)
        if self.training or len(centres) <= CENTRES_AT_ONCE:
            return self._describe(xyz, counts, centres, centre_counts, features)
        parts = []
        for start in range(0, len(centres), CENTRES_AT_ONCE):
            some = centres[start : start + CENTRES_AT_ONCE]
            ends = (centre_counts.cumsum(0) - start).clamp(0, len(some))  # (B,) of the scenes among these centres
            parts.append(self._describe(xyz, counts, some, ends.diff(prepend=ends.new_zeros(1)), features))
        return torch.cat(parts)

    def _describe(
        self, xyz: Tensor, counts: Tensor, centres: Tensor, centre_counts: Tensor, features: Tensor
    ) -> Tensor:
        """:meth:`forward` on features that are folded already. -> (M, C')"""
        describe = self._interpolate if self.kind == "local_interpolation" else self._pool
        cells, occupied = describe(xyz, counts, centres, centre_counts, features)  # (K, T, I), (M,)
        empty = len(centres) - len(cells)
        weight = torch.ones(len(cells) + (empty > 0), dtype=torch.int64, device=cells.device)
        if empty:
            cells = F.pad(cells, (0, 0, 0, 0, 0, 1))  # (K + 1, T, I) the last row is that of all empty centres
            weight[-1] = empty
        layers = (*self.separate_local_aggregation_layer, *self.post_mlps)
        rows = run_weighted(layers, cells, weight)  # (K + 1, C')
        place = torch.where(occupied, occupied.cumsum(0) - 1, len(rows) - 1)  # (M,)
        return rows.index_select(0, place)

    def _interpolate(
        self, xyz: Tensor, counts: Tensor, centres: Tensor, centre_counts: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Features and three offsets of every cell of the centres that have neighbours. -> (K, T, C + 9), (M,) bool"""
        grid = centres.unsqueeze(1) + self.cell_offsets  # (M, T, 3)
        distance, index = local_three_nn(
            xyz,
            counts,
            centres,
            grid,
            centre_counts,
            self.max_distance * SEARCH_FACTOR,
            self.num_samples,
            CUBE,
        )  # (M, T, 3) each
        known = index[..., 0] >= 0  # (M, T)
        occupied = known.any(dim=1)  # (M,)
        filled = occupied.nonzero()[:, 0]  # (K,)
        grid, index, known = grid[filled], index[filled].clamp(min=0), known[filled]
        weight = 1 / (distance[filled] + EPSILON)  # (K, T, 3)
        weight = weight / weight.sum(dim=-1, keepdim=True).clamp(min=EPSILON)
        mixed = three_interpolate(features, index.view(-1, 3), weight.view(-1, 3))  # (K * T, C)
        mixed = mixed.view(*known.shape, self.reduced)  # (K, T, C)
        offsets = (grid.unsqueeze(2) - xyz[index]).flatten(2)  # (K, T, 9)
        return torch.cat([mixed, offsets], dim=-1) * known.unsqueeze(-1), occupied

    def _pool(
        self, xyz: Tensor, counts: Tensor, centres: Tensor, centre_counts: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Offset and features of every cell of the centres that have neighbours. -> (K, T, 3 + C), (M,) bool"""
        method = "avg" if self.kind == "voxel_avg_pool" else "first"
        pooled = voxel_pool(
            xyz,
            counts,
            features,
            centres,
            centre_counts,
            self.num_local_voxel,
            self.max_distance,
            self.num_samples,
            CUBE,
            method,
        )
        occupied = (pooled.counts > 0).any(dim=1)  # (M,)
        cells = torch.cat([pooled.offsets.to(pooled.features.dtype), pooled.features], dim=-1)  # (M, T, 3 + C)
        return cells[occupied], occupied


class VectorPoolAggregationModuleMSG(nn.Module):
    """Vector pools of several sizes side by side with the centre's coordinates, mixed by ``msg_post_mlps``.

    ``pools`` become ``layer_0``, ``layer_1`` ..., as in OpenPCDet's checkpoints.
    """

    def __init__(self, pools: Sequence[VectorPoolAggregationModule], msg_post_mlps: Sequence[int]):
        super().__init__()
        self.names = tuple(f"layer_{k}" for k in range(len(pools)))
        for name, pool in zip(self.names, pools, strict=True):
            self.add_module(name, pool)
        self.msg_post_mlps = conv1d_stack(3 + sum(pool.out_channels for pool in pools), msg_post_mlps)
        self.out_channels = msg_post_mlps[-1]

    def forward(
        self,
        xyz: Tensor,  # (N, 3) scene after scene
        counts: Tensor,  # (B,) points of each scene
        centres: Tensor,  # (M, 3)
        centre_counts: Tensor,  # (B,)
        features: Tensor,  # (N, C)
    ) -> Tensor:
        """-> (M, C')"""
        pools = [getattr(self, name)(xyz, counts, centres, centre_counts, features) for name in self.names]
        return self.msg_post_mlps(torch.cat([centres, *pools], dim=1))


def _cell_offsets(num_voxels: Sequence[int], distance: float) -> Tensor:
    """Centres of the cells relative to the centre of the cube, x slowest. (T, 3)"""
    axes = [[distance * ((2 * i + 1) / n - 1) for i in range(n)] for n in num_voxels]
    return torch.tensor(list(itertools.product(*axes)), dtype=torch.float32)
