"""Feature propagation of PointNet++ between equally long clouds (Qi et al. 2017, sec. 3.4)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.layers.set_abstraction import SharedMLP
from pcdet.ops.three_nn import three_interpolate, three_nn_stack

SQUARE_FLOOR = 1e-10  # squared distances below this count as this


class CloudPropagation(nn.Module):
    """Carry features from few points to many: interpolation, skip connection, MLP.

    A point's feature is the mean of its three nearest known ones, weighted by the inverse of the *squared* distance,
    followed by the features that it has already. (OpenPCDet weights by the inverse distance: ``FeaturePropagation``.)
    Interpolation is linear and so is the MLP's first layer, whose part for the known features therefore runs before
    it, on the fewer points.

    Args:
        known_channels: of the features that are carried.
        skip_channels: of those that the points have already; 0 if none.
        mlp: output channels of each layer.
    """

    def __init__(self, known_channels: int, skip_channels: int, mlp: Sequence[int]):
        super().__init__()
        self.known_channels = known_channels
        self.mlp = SharedMLP([known_channels + skip_channels, *mlp])
        self.out_channels = mlp[-1]

    def forward(
        self,
        points: Tensor,  # (B, N, 3)
        skip: Tensor | None,  # (B, N, C)
        known_points: Tensor | None,  # (B, M, 3); None where one feature describes the whole cloud, M = 1
        known_features: Tensor,  # (B, M, K)
    ) -> Tensor:
        """(B, N, C')."""
        first = self.mlp.linears[0]
        of_known, of_skip = first.weight.tensor_split([self.known_channels], dim=1)
        known = known_features @ of_known.T + first.bias  # (B, M, C1); weights add up to 1, so the bias may go first
        if known_points is None:
            rows = known.expand(-1, points.shape[1], -1)  # (B, N, C1)
        else:
            rows = interpolate(points, known_points, known)
        if skip is not None:
            rows = rows + skip @ of_skip.T
        return self.mlp.rest(rows.flatten(0, 1)).view(*points.shape[:2], -1)


def interpolate(
    points: Tensor,  # (B, N, 3)
    known_points: Tensor,  # (B, M, 3)
    known_features: Tensor,  # (B, M, K)
) -> Tensor:
    """Means of the three nearest known features by inverse squared distance. -> (B, N, K)"""
    batch, n, _ = points.shape
    counts = torch.full((batch,), n, device=points.device)
    known_counts = torch.full((batch,), known_points.shape[1], device=points.device)
    distance, index = three_nn_stack(points.flatten(0, 1), counts, known_points.flatten(0, 1), known_counts)
    inverse = 1 / distance.square().clamp(min=SQUARE_FLOOR)  # (B * N, 3); 0 for a neighbour that there is not
    weight = inverse / inverse.sum(dim=1, keepdim=True)
    return three_interpolate(known_features.flatten(0, 1), index, weight).view(batch, n, -1)
