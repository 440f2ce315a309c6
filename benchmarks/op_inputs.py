"""Inputs of the operator benchmarks, drawn from a fixed seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

KITTI_PILLARS = ([0.0, -39.68, -3.0, 69.12, 39.68, 1.0], [0.16, 0.16, 4.0], [432, 496, 1])
KITTI_VOXELS = ([0.0, -40.0, -3.0, 70.4, 40.0, 1.0], [0.05, 0.05, 0.1], [1408, 1600, 40])


@dataclass
class Case:
    """One operator at one size, and other ways to the same answer."""

    name: str
    size: str
    ours: Callable[[], object]
    others: dict[str, Callable[[], object]] = field(default_factory=dict)


def generator() -> torch.Generator:
    """Draws on torch's default device."""
    return torch.Generator(torch.get_default_device()).manual_seed(0)


def shapes(batch: int, n: int) -> Tensor:
    """(B, N, 3) points in a unit ball, as clouds of a classification task."""
    points = torch.randn(batch, n, 3, generator=generator())
    return points / points.norm(dim=-1, keepdim=True).clamp(min=1)


def lidar(n: int) -> Tensor:
    """(N, 4) points x y z intensity that thin out with distance, in front of the scanner."""
    g = generator()
    distance = 2 + 70 * torch.rand(n, generator=g) ** 2
    angle = 1.6 * (torch.rand(n, generator=g) - 0.5)
    z = -1.7 + 0.3 * torch.randn(n, generator=g) + 3 * torch.rand(n, generator=g) ** 4
    return torch.stack([distance * angle.cos(), distance * angle.sin(), z, torch.rand(n, generator=g)], dim=1)


def boxes(m: int) -> Tensor:
    """(M, 7) boxes the size of cars, over 70 x 80 m."""
    place = torch.rand(m, 3, generator=generator()) * torch.tensor([70.0, 80.0, 1.0]) - torch.tensor([0.0, 40.0, 1.5])
    size = torch.tensor([3.9, 1.6, 1.56]) * (0.8 + 0.4 * torch.rand(m, 3, generator=generator()))
    return torch.cat([place, size, (torch.rand(m, 1, generator=generator()) - 0.5) * 2 * math.pi], dim=1)
