"""Set abstraction of PointNet++ (Qi et al. 2017, sec. 3.2 and 3.3).

Features are kept as rows, one a point or neighbour, with the channels last: a shared MLP is then a plain matrix
product, and gathering neighbours copies whole rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.ops.ball_query import ball_query
from pcdet.ops.furthest_point_sampling import furthest_point_sample
from pcdet.ops.grouping import group_points


class SharedMLP(nn.Module):
    """Linear, batch norm and ReLU per layer, on rows.

    The first linear layer is called on its own: it may run before neighbours are gathered.
    """

    def __init__(self, channels: Sequence[int]):
        super().__init__()
        pairs = list(zip(channels[:-1], channels[1:], strict=True))
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) for _, b in pairs)
        for linear in self.linears:
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def first(self, rows: Tensor) -> Tensor:  # (..., C0) -> (..., C1)
        """The first linear layer, without its norm."""
        return self.linears[0](rows)

    def rest(self, rows: Tensor) -> Tensor:  # (R, C1) -> (R, CL)
        """Everything after the first linear layer."""
        rows = torch.relu_(self.norms[0](rows))
        for linear, norm in zip(self.linears[1:], self.norms[1:], strict=True):
            rows = torch.relu_(norm(linear(rows)))
        return rows


class SetAbstraction(nn.Module):
    """Sample centres, gather the neighbours of each, and describe each neighbourhood by one feature.

    A neighbour enters with its offset from the centre and its features, in this order. As the MLP's first layer is
    linear, ``W [p - c, f] = W [p, f] - W_xyz c``: it runs once a point instead of once a neighbour.

    Args:
        in_channels: C, features of a point besides x y z.
        num_centres: S, centres that furthest point sampling chooses, beginning with point 0.
        radius: of the ball, in the unit of the coordinates; the border is outside.
        num_neighbours: G; the first G points in index order are taken, and the first one is repeated if there are
            fewer.
        mlp: output channels of each layer.
    """

    def __init__(self, in_channels: int, num_centres: int, radius: float, num_neighbours: int, mlp: Sequence[int]):
        super().__init__()
        self.num_centres, self.radius, self.num_neighbours = num_centres, radius, num_neighbours
        self.mlp = SharedMLP([3 + in_channels, *mlp])
        self.out_channels = mlp[-1]

    def forward(
        self,
        points: Tensor,  # (B, N, 3)
        features: Tensor | None,  # (B, N, C)
    ) -> tuple[Tensor, Tensor]:
        """Centres (B, S, 3) and their features (B, S, C')."""
        batch = points.shape[0]
        centres = gather_rows(points, furthest_point_sample(points, self.num_centres))  # (B, S, 3)
        idx, _ = ball_query(points, centres, self.radius, self.num_neighbours)  # (B, S, G); a centre finds itself
        rows = self._first_layer(points, features, centres, idx).flatten(0, 2)  # (B * S * G, C1)
        rows = self.mlp.rest(rows).view(batch, self.num_centres, self.num_neighbours, -1)
        return centres, rows.max(dim=2).values  # (B, S, C')

    def _first_layer(self, points: Tensor, features: Tensor | None, centres: Tensor, idx: Tensor) -> Tensor:
        """The first linear layer of all neighbours, (B, S, G, C1).

        Never in half precision: the two terms are as large as the coordinates, and their difference as the radius.
        """
        with torch.autocast(points.device.type, enabled=False):
            rows = points if features is None else torch.cat([points, features.to(points.dtype)], dim=-1)
            rows = group_points(self.mlp.first(rows), idx)
            shift = centres @ self.mlp.linears[0].weight[:, :3].T  # (B, S, C1)
            return rows - shift[:, :, None]


class GlobalAbstraction(nn.Module):
    """Describe a whole cloud by one feature: the MLP sees each point's coordinates and features, then the maximum."""

    def __init__(self, in_channels: int, mlp: Sequence[int]):
        super().__init__()
        self.mlp = SharedMLP([3 + in_channels, *mlp])
        self.out_channels = mlp[-1]

    def forward(
        self,
        points: Tensor,  # (B, N, 3)
        features: Tensor | None,  # (B, N, C)
    ) -> Tensor:
        """(B, C')."""
        rows = points if features is None else torch.cat([points, features], dim=-1)
        batch, n, channels = rows.shape
        rows = self.mlp.rest(self.mlp.first(rows.reshape(batch * n, channels)))
        return rows.view(batch, n, -1).max(dim=1).values


def gather_rows(rows: Tensor, idx: Tensor) -> Tensor:
    """Rows (B, N, C) at (B, S) -> (B, S, C)."""
    return rows.gather(1, idx[..., None].expand(-1, -1, rows.shape[-1]))
