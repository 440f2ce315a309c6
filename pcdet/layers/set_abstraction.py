"""Set abstraction of PointNet++ (Qi et al. 2017, sec. 3.2 and 3.3).

Features are kept as rows, one a point or neighbour, with the channels last: a shared MLP is then a plain matrix
product, and gathering neighbours copies whole rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.layers.row_norm import RowNorm
from pcdet.layers.weighted_norm import has_own_statistics, normalise_rows, track_statistics
from pcdet.ops.ball_query import ball_query
from pcdet.ops.furthest_point_sampling import furthest_point_sample
from pcdet.ops.grouped_mlp import grouped_mlp, grouped_mlp_known
from pcdet.ops.grouping import group_points


class SharedMLP(nn.Module):
    """Linear, batch norm and ReLU per layer, on rows.

    The first linear layer is called on its own: it may run before neighbours are gathered. ``last_relu=False`` leaves
    out the ReLU of the last layer.
    """

    def __init__(self, channels: Sequence[int], *, last_relu: bool = True):
        super().__init__()
        self.last_relu = last_relu
        pairs = list(zip(channels[:-1], channels[1:], strict=True))
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(RowNorm(b) for _, b in pairs)
        for linear in self.linears:
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def first(self, rows: Tensor) -> Tensor:  # (..., C0) -> (..., C1)
        """The first linear layer, without its norm."""
        return self.linears[0](rows)

    def rest(self, rows: Tensor) -> Tensor:  # (R, C1) -> (R, CL)
        """Everything after the first linear layer."""
        last = len(self.norms) - 1
        for layer, norm in enumerate(self.norms):
            rows = self.linears[layer](rows) if layer > 0 else rows
            rows = _normalised(norm, rows, relu=layer < last or self.last_relu)
        return rows

    def grouped(
        self,
        table: Tensor,  # (B, N, C1), of :meth:`first`
        shift: Tensor,  # (B, S, C1)
        idx: Tensor,  # (B, S, G)
        found: Tensor,  # (B, S) how many of the G differ: the first ones; the others repeat the very first
    ) -> Tensor:
        """The maximum over each group of :meth:`rest` of ``table[idx] - shift``. -> (B, S, CL)

        On a CPU in one piece, unless the norms share statistics with other ranks, precision is mixed, or a gradient
        is wanted of norms that use their running statistics.
        """
        if self._fuses(table, idx):
            return self._fused(table, shift, idx, found)
        rows = group_points(table, idx) - shift[:, :, None]  # (B, S, G, C1)
        return self.rest(rows.flatten(0, 2)).view(*idx.shape, -1).max(dim=2).values

    def _fuses(self, table: Tensor, idx: Tensor) -> bool:
        plain = table.device.type == "cpu" and table.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        one_eps = len({norm.eps for norm in self.norms}) == 1
        if not (plain and one_eps and len(self.linears) > 1 and idx.numel() >= 2):
            return False
        if self.norms[0].training:
            return all(has_own_statistics(norm) for norm in self.norms)
        running = all(not norm.training and norm.track_running_stats for norm in self.norms)
        learns = any(tensor.requires_grad for tensor in (table, *self.parameters()))
        return running and not (torch.is_grad_enabled() and learns)

    def _fused(self, table: Tensor, shift: Tensor, idx: Tensor, found: Tensor) -> Tensor:
        norms, linears = self.norms, self.linears[1:]
        layers = [linear.weight for linear in linears], [linear.bias for linear in linears]
        affine = [norm.weight for norm in norms], [norm.bias for norm in norms]
        eps, relu = norms[0].eps, self.last_relu
        if not norms[0].training:
            known = [norm.running_mean for norm in norms], [norm.running_var for norm in norms]
            return grouped_mlp_known(table, shift, idx, found, *layers, *affine, *known, eps, relu=relu)
        out, means, variances = grouped_mlp(table, shift, idx, found, *layers, *affine, eps, relu=relu)
        for norm, mean, variance in zip(norms, means, variances, strict=True):
            track_statistics(norm, mean, variance, idx.numel())
        return out


def _normalised(norm: nn.Module, rows: Tensor, *, relu: bool) -> Tensor:
    if has_own_statistics(norm) and len(rows) >= 2 and rows.device.type == "cpu" and rows.dtype == torch.float32:
        return normalise_rows(rows, None, norm, relu=relu)
    rows = norm(rows)
    return torch.relu_(rows) if relu else rows


class SetAbstraction(nn.Module):
    """Sample centres, gather the neighbours of each, and describe each neighbourhood by one feature.

    A neighbour enters with its offset from the centre and its features, in this order unless ``features_first``. As
    the MLP's first layer is linear, ``W [p - c, f] = W [p, f] - W_xyz c``: it runs once a point instead of once a
    neighbour.

    Args:
        in_channels: C, features of a point besides x y z.
        num_centres: S, centres that furthest point sampling chooses, beginning with point 0.
        radius: of the ball, in the unit of the coordinates; the border is outside.
        num_neighbours: G; the first G points in index order are taken, and the first one is repeated if there are
            fewer.
        mlp: output channels of each layer.
        features_first: whether the features come before the offset.
    """

    def __init__(
        self,
        in_channels: int,
        num_centres: int,
        radius: float,
        num_neighbours: int,
        mlp: Sequence[int],
        *,
        features_first: bool = False,
    ):
        super().__init__()
        self.num_centres, self.radius, self.num_neighbours = num_centres, radius, num_neighbours
        self.features_first = features_first
        self.mlp = SharedMLP([3 + in_channels, *mlp])
        self.out_channels = mlp[-1]

    def forward(
        self,
        points: Tensor,  # (B, N, 3)
        features: Tensor | None,  # (B, N, C)
    ) -> tuple[Tensor, Tensor]:
        """Centres (B, S, 3) and their features (B, S, C')."""
        centres = sample_centres(points, self.num_centres)  # (B, S, 3)
        idx, found = ball_query(points, centres, self.radius, self.num_neighbours)  # (B, S, G); a centre finds itself
        return centres, describe_balls(self.mlp, points, features, centres, idx, found, self.features_first)


class MultiScaleAbstraction(nn.Module):
    """Set abstraction at several radii around the same centres (multi-scale grouping, sec. 3.3).

    Args:
        in_channels: C, features of a point besides x y z.
        num_centres: S, centres that furthest point sampling chooses, beginning with point 0.
        radii: of the ball of each scale.
        num_neighbours: G of each scale.
        mlps: output channels of each layer, one list a scale.
        features_first: whether the features come before the offset, as in the published multi-scale model.

    Raises ``ValueError`` where a scale lacks a radius, a number or an MLP.
    """

    def __init__(
        self,
        in_channels: int,
        num_centres: int,
        radii: Sequence[float],
        num_neighbours: Sequence[int],
        mlps: Sequence[Sequence[int]],
        *,
        features_first: bool = True,
    ):
        super().__init__()
        if not len(radii) == len(num_neighbours) == len(mlps) > 0:
            raise ValueError(
                f"every scale needs a radius, a number of neighbours and an MLP; there are {len(radii)} radii, "
                f"{len(num_neighbours)} numbers and {len(mlps)} MLPs"
            )
        self.num_centres, self.features_first = num_centres, features_first
        self.balls = list(zip(radii, num_neighbours, strict=True))
        self.mlps = nn.ModuleList(SharedMLP([3 + in_channels, *mlp]) for mlp in mlps)
        self.out_channels = sum(mlp[-1] for mlp in mlps)

    def forward(
        self,
        points: Tensor,  # (B, N, 3)
        features: Tensor | None,  # (B, N, C)
    ) -> tuple[Tensor, Tensor]:
        """Centres (B, S, 3) and their features (B, S, C'), the scales one after another."""
        centres = sample_centres(points, self.num_centres)  # (B, S, 3)
        scales = []
        for (radius, size), mlp in zip(self.balls, self.mlps, strict=True):
            idx, found = ball_query(points, centres, radius, size)  # (B, S, G)
            scales.append(describe_balls(mlp, points, features, centres, idx, found, self.features_first))
        return centres, torch.cat(scales, dim=-1)


def sample_centres(points: Tensor, num_centres: int) -> Tensor:
    """Furthest point sampling of (B, N, 3) from point 0 -> (B, S, 3)."""
    return gather_rows(points, furthest_point_sample(points, num_centres))


def describe_balls(
    mlp: SharedMLP,
    points: Tensor,  # (B, N, 3)
    features: Tensor | None,  # (B, N, C)
    centres: Tensor,  # (B, S, 3)
    idx: Tensor,  # (B, S, G)
    found: Tensor,  # (B, S)
    features_first: bool,
) -> Tensor:
    """The maximum over each ball of what the MLP makes of its neighbours. -> (B, S, C')"""
    # Never in half precision: both terms are as large as the coordinates, and their difference as the radius.
    with torch.autocast(points.device.type, enabled=False):
        parts = [points] if features is None else [points, features.to(points.dtype)]
        table = mlp.first(torch.cat(parts[::-1] if features_first else parts, dim=-1))  # (B, N, C1)
        weight = mlp.linears[0].weight
        shift = centres @ (weight[:, -3:] if features_first else weight[:, :3]).T  # (B, S, C1)
    return mlp.grouped(table, shift, idx, found)


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
        table = self.mlp.first(rows)  # (B, N, C1)
        batch, n, width = table.shape
        everything = torch.arange(n, device=table.device).expand(batch, 1, n)
        found = torch.full((batch, 1), n, device=table.device)
        return self.mlp.grouped(table, table.new_zeros(batch, 1, width), everything, found)[:, 0]


def gather_rows(rows: Tensor, idx: Tensor) -> Tensor:
    """Rows (B, N, C) at (B, S) -> (B, S, C)."""
    return rows.gather(1, idx[..., None].expand(-1, -1, rows.shape[-1]))
