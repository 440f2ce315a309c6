"""PointNet++ for classification in plain torch, the way ports of it are usually written.

All squared distances, a loop for furthest point sampling, a sort for the ball query, neighbours gathered before any
layer, 1x1 convolutions over an image (B, C, G, S). Where ports differ it is the faster way: ``torch.minimum`` and
``torch.where`` instead of values assigned through a mask, and features that lie row by row in memory when they are
gathered. The weights are those of this project's model, so that outputs can be compared; sampling starts at point 0, as
ours does.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """(B, S, 3), (B, N, 3) -> (B, S, N)."""
    distances = -2 * torch.matmul(a, b.transpose(1, 2))
    distances += a.square().sum(-1)[:, :, None]
    distances += b.square().sum(-1)[:, None]
    return distances


def take(points: Tensor, idx: Tensor) -> Tensor:
    """Rows of (B, N, C) at (B, ...) -> (B, ..., C)."""
    cloud = torch.arange(len(points), device=points.device).view(-1, *[1] * (idx.ndim - 1))
    return points[cloud.expand_as(idx), idx]


def furthest_points(points: Tensor, count: int) -> Tensor:
    """(B, N, 3) -> (B, S)."""
    batch, n, _ = points.shape
    nearest = points.new_full((batch, n), 1e10)
    last = torch.zeros(batch, dtype=torch.long, device=points.device)
    chosen = [last]
    for _ in range(count - 1):
        distance = (points - take(points, last[:, None])).square().sum(-1)
        nearest = torch.minimum(nearest, distance)
        last = nearest.max(dim=-1).indices
        chosen.append(last)
    return torch.stack(chosen, dim=1)


def ball(points: Tensor, centres: Tensor, radius: float, size: int) -> Tensor:
    """(B, N, 3), (B, S, 3) -> (B, S, G): the first G points within the radius, filled up with the first one."""
    batch, n, _ = points.shape
    idx = torch.arange(n, device=points.device).expand(batch, centres.shape[1], n).clone()
    idx[squared_distances(centres, points) >= radius**2] = n
    idx = idx.sort(dim=-1).values[..., :size]
    return torch.where(idx == n, idx[..., :1], idx)


class PlainMLP(nn.Module):
    """1x1 convolution, batch norm and ReLU, layer after layer."""

    def __init__(self, mlp: nn.Module):
        super().__init__()
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for linear, norm in zip(mlp.linears, mlp.norms, strict=True):
            conv = nn.Conv2d(linear.in_features, linear.out_features, 1)
            conv.load_state_dict({"weight": linear.weight[:, :, None, None], "bias": linear.bias})
            twin = nn.BatchNorm2d(norm.num_features, norm.eps, norm.momentum)
            twin.load_state_dict(norm.state_dict())
            self.convs.append(conv)
            self.norms.append(twin)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, G, S) -> (B, C')
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return x.max(dim=2).values


class PlainLevel(nn.Module):
    """Set abstraction with one radius or several."""

    def __init__(self, level: nn.Module):
        super().__init__()
        several = hasattr(level, "mlps")
        self.num_centres, self.features_first = level.num_centres, level.features_first
        self.balls = level.balls if several else [(level.radius, level.num_neighbours)]
        self.mlps = nn.ModuleList(PlainMLP(mlp) for mlp in (level.mlps if several else [level.mlp]))

    def forward(self, points: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        with record_function("plain::sampling"):
            centres = take(points, furthest_points(points, self.num_centres))  # (B, S, 3)
        return centres, torch.cat([self._describe(i, points, features, centres) for i in range(len(self.balls))], -1)

    def _describe(self, scale: int, points: Tensor, features: Tensor | None, centres: Tensor) -> Tensor:
        with record_function("plain::grouping"):
            idx = ball(points, centres, *self.balls[scale])  # (B, S, G)
            parts = [take(points, idx) - centres[:, :, None]]
            parts += [] if features is None else [take(features, idx)]
            rows = torch.cat(parts[::-1] if self.features_first else parts, dim=-1)  # (B, S, G, 3 + C)
        return self.mlps[scale](rows.permute(0, 3, 2, 1)).transpose(1, 2)  # (B, S, C')


class PlainClassifier(nn.Module):
    """The twin of a classifier of this project, with copies of its weights."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.levels = nn.ModuleList(PlainLevel(level) for level in model.backbone_3d.sa_modules)
        self.whole = PlainMLP(model.backbone_3d.global_module.mlp)
        self.head = nn.Sequential(*(_copy(layer) for layer in model.cls_head.layers))

    def forward(self, clouds: Tensor) -> Tensor:  # (B, N, 3 + C) -> (B, K)
        points, features = clouds[..., :3], clouds[..., 3:] if clouds.shape[-1] > 3 else None
        for level in self.levels:
            points, features = level(points, features)
        rows = torch.cat([points, features], dim=-1)
        return self.head(self.whole(rows.transpose(1, 2)[..., None]).flatten(1))


def _copy(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.Linear):
        made: nn.Module = nn.Linear(layer.in_features, layer.out_features)
    elif isinstance(layer, nn.BatchNorm1d):
        made = nn.BatchNorm1d(layer.num_features, layer.eps, layer.momentum)
    else:
        return nn.Dropout(layer.p) if isinstance(layer, nn.Dropout) else nn.ReLU()
    made.load_state_dict(layer.state_dict())
    return made
