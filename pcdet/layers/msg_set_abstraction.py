"""Set abstraction with multi-scale grouping, and feature propagation (Qi et al. 2017, "PointNet++", sec. 3.3 and 3.4).

Features are kept as rows with the channels last, as in ``set_abstraction.py``. Names, shapes and numbers of the
parameters are those of OpenPCDet's layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.layers.row_mlp import RowMLP
from pcdet.layers.set_abstraction import gather_rows
from pcdet.ops.ball_query import ball_query
from pcdet.ops.furthest_point_sampling import furthest_point_sample
from pcdet.ops.grouping import group_points
from pcdet.ops.three_nn import three_interpolate, three_nn_stack

EPSILON = 1e-8  # metres, added to a distance before it is inverted


class MSGSetAbstraction(nn.Module):
    """Sample centres, and describe the neighbourhood of each at several scales.

    A neighbour enters with its offset from the centre and its features, in this order. The parts of the first layer
    that read features run once a point where that is less work than once a neighbour.

    Args:
        in_channels: C, features of a point besides x y z.
        num_centres: S, centres that furthest point sampling chooses, beginning with point 0.
        radii: of the ball of each scale, in metres; the border is outside.
        num_neighbours: G of each scale; the first G points in index order are taken, and the first one is repeated
            if there are fewer.
        mlps: output channels of each layer, a list for each scale.
        use_xyz: whether the offset enters at all.
    """

    def __init__(
        self,
        in_channels: int,
        num_centres: int,
        radii: Sequence[float],
        num_neighbours: Sequence[int],
        mlps: Sequence[Sequence[int]],
        *,
        use_xyz: bool = True,
    ):
        super().__init__()
        self.num_centres, self.use_xyz = num_centres, use_xyz
        self.balls = list(zip(radii, num_neighbours, strict=True))
        self.mlps = nn.ModuleList(RowMLP([in_channels + 3 * use_xyz, *mlp]) for mlp in mlps)
        self.out_channels = sum(mlp.out_channels for mlp in self.mlps)

    def forward(
        self,
        points: Tensor,  # (B, N, 3)
        features: Tensor | None,  # (B, N, C)
    ) -> tuple[Tensor, Tensor]:
        """Centres (B, S, 3) and their features (B, S, C'), the scales one after another."""
        centres = gather_rows(points, furthest_point_sample(points, self.num_centres))  # (B, S, 3)
        scales = []
        for (radius, count), mlp in zip(self.balls, self.mlps, strict=True):
            index, _ = ball_query(points, centres, radius, count)  # (B, S, G); a centre finds itself
            rows = self._first_layer(mlp, points, features, centres, index)  # (B * S * G, C1)
            rows = mlp.rest(rows).view(*index.shape, -1)  # (B, S, G, C')
            scales.append(rows.max(dim=2).values)
        return centres, torch.cat(scales, dim=-1)

    def _first_layer(self, mlp: RowMLP, points: Tensor, features: Tensor | None, centres: Tensor, index: Tensor):
        """The first convolution of all neighbours, (B * S * G, C1)."""
        if not self.use_xyz:
            return group_points(mlp.first(features), index).flatten(0, 2)
        offset = (group_points(points, index) - centres[:, :, None]).flatten(0, 2)  # (B * S * G, 3)
        if features is None:
            return mlp.first(offset)
        weight = mlp[0].weight.flatten(1)  # (C1, 3 + C)
        if len(weight) > weight.shape[1]:  # gathering the inputs moves less memory than gathering the outputs
            return mlp.first(torch.cat([offset, group_points(features, index).flatten(0, 2)], dim=1))
        rows = group_points(features @ weight[:, 3:].T, index).flatten(0, 2)  # (B * S * G, C1)
        return torch.addmm(rows, offset, weight[:, :3].T)


class GlobalSetAbstraction(nn.Module):
    """Describe a whole cloud by one feature: an MLP sees each point's coordinates and features, then the maximum."""

    def __init__(self, in_channels: int, mlp: Sequence[int], *, use_xyz: bool = True):
        super().__init__()
        self.use_xyz = use_xyz
        self.mlps = nn.ModuleList([RowMLP([in_channels + 3 * use_xyz, *mlp])])
        self.out_channels = mlp[-1]

    def forward(
        self,
        points: Tensor,  # (B, N, 3)
        features: Tensor,  # (B, N, C)
    ) -> Tensor:
        """(B, C')."""
        rows = torch.cat([points, features], dim=-1) if self.use_xyz else features
        return self.mlps[0](rows.flatten(0, 1)).view(*points.shape[:2], -1).max(dim=1).values


class FeaturePropagation(nn.Module):
    """Carry features from few points to many: interpolation, skip connection, MLP.

    A point's feature is the mean of its three nearest known ones, weighted by the inverse distance (PointNet++ itself
    takes the squared one), followed by the features that it has already. Interpolation is linear, as is the first
    layer, whose part for the known features therefore runs before it, on the fewer points. Scenes are stacked and may
    differ in size.

    Args:
        known_channels: of the features that are carried.
        skip_channels: of those that the points have already; 0 if none.
        mlp: output channels of each layer.
    """

    def __init__(self, known_channels: int, skip_channels: int, mlp: Sequence[int]):
        super().__init__()
        self.known_channels = known_channels
        self.mlp = RowMLP([known_channels + skip_channels, *mlp])
        self.out_channels = mlp[-1]

    def forward(
        self,
        points: Tensor,  # (N, 3)
        counts: Tensor,  # (B,) points of each scene
        features: Tensor | None,  # (N, C) skip connection
        known_points: Tensor,  # (M, 3)
        known_counts: Tensor,  # (B,)
        known_features: Tensor,  # (M, K)
    ) -> Tensor:
        """(N, C')."""
        distance, index = three_nn_stack(points, counts, known_points, known_counts)  # (N, 3)
        inverse = 1 / (distance + EPSILON)
        weight = inverse / inverse.sum(dim=1, keepdim=True)  # (N, 3)
        of_known, of_skip = self.mlp[0].weight.flatten(1).tensor_split([self.known_channels], dim=1)
        rows = three_interpolate(known_features @ of_known.T, index, weight)  # (N, C1)
        if features is not None:
            rows = torch.addmm(rows, features, of_skip.T)
        return self.mlp.rest(rows)
