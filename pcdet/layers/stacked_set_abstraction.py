"""Multi-scale set abstraction of stacked clouds (PointNet++, Qi et al. 2017, sec. 3.3; PV-RCNN, Shi et al. 2020).

Scenes of different sizes follow one another and are told apart by counts. Only pairs of a centre and a neighbour that
differ become rows: the pair that fills a ball's vacant places goes through the MLP once, with a weight for the
statistics of the batch norms.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.row_mlp import RowMLP
from pcdet.ops.ball_query import ball_query_stack
from pcdet.ops.grouping import group_rows
from pcdet.ops.scatter import pool_rows


class Neighbours(NamedTuple):
    """Pairs of a centre and one of its neighbours, centre by centre, each pair once; R of them."""

    centre: Tensor  # (R,) int64
    point: Tensor  # (R,) int64; the number of points, N, where a centre has no neighbour
    weight: Tensor  # (R,) int64; how many of the M * G places each stands for
    per_centre: Tensor  # (M,) int64; rows of each centre, at least 1


def distinct_neighbours(
    index: Tensor,  # (M, G) int64
    found: Tensor,  # (M,) int64; neighbours that differ, the first of which fills the remaining places
    num_points: int,
) -> Neighbours:
    """The pairs of a ball query. A centre without neighbours gets one row, for point N."""
    size = index.shape[1]
    rows = found.clamp(min=1).unsqueeze(1)  # (M, 1)
    place = torch.arange(size, device=index.device)  # (G,)
    keep = place < rows  # (M, G)
    point = torch.where(found.unsqueeze(1) > 0, index, num_points)  # (M, G)
    weight = torch.where(place == 0, size - rows + 1, 1)  # (M, G)
    return Neighbours(keep.nonzero()[:, 0], point[keep], weight[keep], rows[:, 0])


class StackSAModuleMSG(nn.Module):
    """Describe the neighbourhood of each centre, at several radii: ball query, shared MLP, maximum.

    A neighbour enters with its offset from the centre and its features, in this order; where a ball is empty, all its
    places enter as zeros. Names and shapes of the parameters are OpenPCDet's (``mlps.0.0.weight`` (O, I, 1, 1) ...).

    Args:
        in_channels: C, features of a point besides x y z.
        radii: of the balls, in metres; the border is outside.
        nsamples: G, neighbours of a centre: the first ones in row order.
        mlps: output channels of each layer, one list a radius.
    """

    def __init__(
        self, in_channels: int, radii: Sequence[float], nsamples: Sequence[int], mlps: Sequence[Sequence[int]]
    ):
        super().__init__()
        if not len(radii) == len(nsamples) == len(mlps):
            raise ValueError(
                f"a radius, a number of samples and an MLP are needed for every scale, got {len(radii)} radii, "
                f"{len(nsamples)} numbers of samples and {len(mlps)} MLPs"
            )
        self.radii, self.nsamples = tuple(radii), tuple(nsamples)
        self.mlps = nn.ModuleList(RowMLP([3 + in_channels, *widths]) for widths in mlps)
        self.out_channels = sum(mlp.out_channels for mlp in self.mlps)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)

    def forward(
        self,
        xyz: Tensor,  # (N, 3) scene after scene
        counts: Tensor,  # (B,) points of each scene
        centres: Tensor,  # (M, 3)
        centre_counts: Tensor,  # (B,)
        features: Tensor | None,  # (N, C)
    ) -> Tensor:
        """-> (M, C'), the scales side by side."""
        scales = []
        for radius, size, mlp in zip(self.radii, self.nsamples, self.mlps, strict=True):
            index, found = ball_query_stack(xyz, counts, centres, centre_counts, radius, size)  # (M, G), (M,)
            pairs = distinct_neighbours(index, found, len(xyz))
            scales.append(describe_neighbours(mlp, xyz, features, centres, pairs))
        return torch.cat(scales, dim=1)


def describe_neighbours(
    mlp: RowMLP,
    xyz: Tensor,  # (N, 3)
    features: Tensor | None,  # (N, C)
    centres: Tensor,  # (M, 3)
    pairs: Neighbours,
    *,
    use_xyz: bool = True,
) -> Tensor:
    """The maximum over the neighbours of each centre, of what the MLP makes of [offset, features]. -> (M, C')

    Without ``use_xyz`` only the features enter.
    """
    rows = _first_layer(mlp, xyz, features, centres, pairs) if use_xyz else _per_pair(mlp.first(features), pairs)
    rows = mlp.rest(rows, pairs.weight)  # (R, C')
    return pool_pairs(rows, pairs.per_centre)


def pool_pairs(
    rows: Tensor,  # (R, C) centre by centre
    per_centre: Tensor,  # (M,)
) -> Tensor:
    """The maximum over the rows of each centre. -> (M, C)"""
    start = F.pad(per_centre.cumsum(0), (1, 0))  # (M + 1,)
    return pool_rows(rows, torch.arange(len(rows), device=rows.device), start, "max")


def _first_layer(mlp: RowMLP, xyz: Tensor, features: Tensor | None, centres: Tensor, pairs: Neighbours) -> Tensor:
    """The first linear layer of [offset, features] for all pairs. -> (R, C1)

    As it is linear, the features' part runs once a point instead of once a pair. Offsets are taken before the
    product: the coordinates are much larger, and in half precision their difference would be lost.
    """
    weight = mlp[0].weight.flatten(1)  # (C1, 3 + C)
    offset = F.pad(xyz, (0, 0, 0, 1))[pairs.point] - centres[pairs.centre]  # (R, 3)
    offset = offset * (pairs.point < len(xyz)).unsqueeze(1)
    if features is None:
        return F.linear(offset, weight)
    return torch.addmm(_per_pair(F.linear(features, weight[:, 3:]), pairs), offset, weight[:, :3].T)


def _per_pair(rows: Tensor, pairs: Neighbours) -> Tensor:
    """Rows (N, C) of the pairs' points, zero for a point N. -> (R, C)"""
    return group_rows(F.pad(rows, (0, 0, 0, 1)), pairs.point.unsqueeze(1))[:, 0]
