"""Furthest point sampling in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor


def sample_batch(points: Tensor, num_samples: int) -> Tensor:
    """(B, N, 3) float32 -> (B, S) int64."""
    batch, n = points.shape[:2]
    out = torch.zeros(batch, num_samples, dtype=torch.int64, device=points.device)
    if batch == 0 or num_samples == 0:
        return out
    distance = points.new_full((batch, n), torch.inf)  # (B, N) squared, to the nearest sample
    rows = torch.arange(batch, device=points.device)
    for s in range(1, num_samples):
        offset = points - points[rows, out[:, s - 1]][:, None]  # (B, N, 3)
        x, y, z = offset.unbind(-1)
        new = x * x + y * y + z * z
        distance = torch.where(new < distance, new, distance)
        out[:, s] = _first_argmax(distance)
    return out


def _first_argmax(values: Tensor) -> Tensor:
    """Lowest index of the row maximum; ``argmax`` leaves open which of several it returns."""
    index = torch.arange(values.shape[1], device=values.device)
    is_largest = values == values.amax(dim=1, keepdim=True)
    return torch.where(is_largest, index, values.shape[1]).amin(dim=1)


def sample_stack(points: Tensor, counts: Sequence[int], samples: Sequence[int]) -> Tensor:
    """(N, 3) float32 -> (sum of samples,) int64 global indices."""
    found, start = [points.new_empty(0, dtype=torch.int64)], 0
    for scene, wanted in zip(points.split(list(counts)), samples, strict=True):
        found.append(sample_batch(scene[None], wanted)[0] + start)
        start += len(scene)
    return torch.cat(found)
