"""Set abstraction with multi-scale grouping, and feature propagation (Qi et al. 2017, "PointNet++", sec. 3.3 and 3.4).

Scenes are stacked: the rows of one follow those of another, and counts tell them apart. Names, shapes and numbers of
the parameters are those of OpenPCDet's layers for equally long clouds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.layers.row_mlp import RowMLP
from pcdet.layers.stacked_set_abstraction import Neighbours, describe_neighbours, distinct_neighbours, pool_pairs
from pcdet.ops.ball_query import ball_query_stack
from pcdet.ops.furthest_point_sampling import furthest_point_sample_stack
from pcdet.ops.three_nn import three_interpolate, three_nn_stack

EPSILON = 1e-8  # metres, added to a distance before it is inverted


class MSGSetAbstraction(nn.Module):
    """Sample centres by furthest point sampling, and describe the neighbourhood of each at several scales.

    A neighbour enters with its offset from the centre and its features, in this order. Pairs of a centre and a
    neighbour that are equal go through the MLP once, with a weight for the statistics of the batch norms.

    Args:
        in_channels: C, features of a point besides x y z.
        radii: of the ball of each scale, in metres; the border is outside.
        num_neighbours: G of each scale; the first G points in index order are taken, and the first one is repeated
            if there are fewer.
        mlps: output channels of each layer, a list for each scale.
        use_xyz: whether the offset enters at all.
    """

    def __init__(
        self,
        in_channels: int,
        radii: Sequence[float],
        num_neighbours: Sequence[int],
        mlps: Sequence[Sequence[int]],
        *,
        use_xyz: bool = True,
    ):
        super().__init__()
        if not use_xyz and in_channels == 0:
            raise ValueError("without USE_XYZ set abstraction needs features, but the points have x y z only")
        self.use_xyz = use_xyz
        self.balls = list(zip(radii, num_neighbours, strict=True))
        self.mlps = nn.ModuleList(RowMLP([in_channels + 3 * use_xyz, *mlp]) for mlp in mlps)
        self.out_channels = sum(mlp.out_channels for mlp in self.mlps)

    def forward(
        self,
        xyz: Tensor,  # (N, 3)
        counts: Tensor,  # (B,) points of each scene
        features: Tensor | None,  # (N, C)
        samples: Tensor,  # (B,) centres of each scene, 0 where it has no points
        *,
        weight: Tensor | None = None,  # (M,) how many equal centres each stands for
        cycle: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Centres (M, 3) and their features (M, C'), the scales one after another.

        With ``cycle`` each scene stands for one of so many points, among which its own are repeated in turn.
        """
        centres = xyz[furthest_point_sample_stack(xyz, counts, samples)]  # (M, 3)
        scales = []
        for (radius, size), mlp in zip(self.balls, self.mlps, strict=True):
            index, found = ball_query_stack(xyz, counts, centres, samples, radius, size)  # (M, G), (M,)
            pairs = distinct_neighbours(index, found, len(xyz))
            if cycle is not None:
                pairs = _count_in_cycles(pairs, index, found, counts, samples, cycle)
            if weight is not None:
                pairs = pairs._replace(weight=pairs.weight * weight[pairs.centre])
            scales.append(describe_neighbours(mlp, xyz, features, centres, pairs, use_xyz=self.use_xyz))
        return centres, torch.cat(scales, dim=1)


def _count_in_cycles(
    pairs: Neighbours,
    index: Tensor,  # (M, G)
    found: Tensor,  # (M,)
    counts: Tensor,  # (B,)
    samples: Tensor,  # (B,)
    cycle: int,
) -> Neighbours:
    """The pairs with the weights that they have where the points of a cloud repeat themselves up to ``cycle`` ones.

    A ball that holds H < G different points takes these again and again, in turn, while there are repetitions; only
    then the first one fills what is left.
    """
    size = index.shape[1]
    place = torch.arange(size, device=index.device)  # (G,)
    scene = torch.repeat_interleave(samples, output_size=len(index))  # (M,)
    local = index - (counts.cumsum(0) - counts)[scene, None]  # (M, G)
    length, found = counts[scene, None], found.unsqueeze(1)  # (M, 1)
    copies = cycle // length + (local < cycle % length)  # (M, G) of each point in the whole cloud
    held = (copies * (place < found)).sum(dim=1, keepdim=True)  # (M, 1) points of the whole cloud in the ball
    taken = torch.where(place < held, place % found, 0)  # (M, G) which of the H points lies in each place
    weight = torch.zeros_like(index).scatter_add_(1, taken, torch.ones_like(index))
    return pairs._replace(weight=weight[place < found])


class GlobalSetAbstraction(nn.Module):
    """Describe a whole scene by one feature: an MLP sees each point's coordinates and features, then the maximum."""

    def __init__(self, in_channels: int, mlp: Sequence[int]):
        super().__init__()
        self.mlps = nn.ModuleList([RowMLP([in_channels + 3, *mlp])])
        self.out_channels = mlp[-1]

    def forward(
        self,
        xyz: Tensor,  # (N, 3)
        counts: Tensor,  # (B,) points of each scene
        features: Tensor,  # (N, C)
        weight: Tensor | None = None,  # (N,) how many equal points each stands for
    ) -> Tensor:
        """(B, C'); 0 for a scene without points."""
        mlp = self.mlps[0]
        return pool_pairs(mlp.rest(mlp.first(torch.cat([xyz, features], dim=1)), weight), counts)


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
