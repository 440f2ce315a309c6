"""Inputs that several operator tests share."""

import math

import torch
from torch import Tensor


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_boxes(count: int, seed: int = 0, spread: float = 10.0) -> Tensor:
    """(M, 7) boxes of 0.5 to 5 m with any heading, in a square of 2 * ``spread`` metres."""
    g = generator(seed)
    centre = (torch.rand(count, 3, generator=g) - 0.5) * torch.tensor([2 * spread, 2 * spread, 2.0])
    size = 0.5 + 4.5 * torch.rand(count, 3, generator=g)
    heading = (torch.rand(count, 1, generator=g) - 0.5) * 4 * math.pi
    return torch.cat([centre, size, heading], dim=1)


def box(x=0.0, y=0.0, z=0.0, dx=4.0, dy=2.0, dz=1.5, heading=0.0) -> Tensor:
    """(1, 7)."""
    return torch.tensor([[x, y, z, dx, dy, dz, heading]])


def lidar_cloud(count: int, seed: int = 0) -> Tensor:
    """(N, 3) points that thin out with distance, as those of a scanner do."""
    g = generator(seed)
    distance = 2 + 70 * torch.rand(count, generator=g) ** 2
    angle = 2.5 * (torch.rand(count, generator=g) - 0.5)
    z = -1.7 + 0.3 * torch.randn(count, generator=g) + 3 * torch.rand(count, generator=g) ** 4
    return torch.stack([distance * angle.cos(), distance * angle.sin(), z], dim=1)


def lattice(side: int) -> Tensor:
    """(side ** 3, 3) points of a regular grid: full of exact ties."""
    axis = torch.arange(float(side))
    return torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).reshape(-1, 3)
