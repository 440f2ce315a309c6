"""Ball query in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

PAIRS_AT_ONCE = 1 << 24  # bounds the memory of the distances


def query(points: Tensor, centres: Tensor, radius: float, num_samples: int) -> tuple[Tensor, Tensor]:
    """(B, N, 3), (B, S, 3) float32 -> indices (B, S, G), counts (B, S) int64."""
    step = max(1, PAIRS_AT_ONCE // max(1, points.shape[0] * points.shape[1]))
    parts = [_query(points, some, radius, num_samples) for some in centres.split(step, dim=1)]
    indices, counts = zip(*parts, strict=True)
    return torch.cat(indices, dim=1), torch.cat(counts, dim=1)


def _query(points: Tensor, centres: Tensor, radius: float, num_samples: int) -> tuple[Tensor, Tensor]:
    x, y, z = (points[:, None] - centres[:, :, None]).unbind(-1)  # (B, S, N)
    inside = x * x + y * y + z * z < points.new_tensor(radius).square()
    rank = inside.cumsum(dim=-1) - 1  # place of a neighbour among those of its centre
    count = inside.sum(dim=-1).clamp(max=num_samples)  # (B, S)
    b, s, n = (inside & (rank < num_samples)).nonzero(as_tuple=True)
    index = torch.zeros(*count.shape, num_samples, dtype=torch.int64, device=points.device)  # (B, S, G)
    index[b, s, rank[b, s, n]] = n
    place = torch.arange(num_samples, device=points.device)
    return torch.where(place < count[..., None], index, index[..., :1]), count


def query_stack(
    points: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    radius: float,
    num_samples: int,
) -> tuple[Tensor, Tensor]:
    """(N, 3), (M, 3) float32 -> global indices (M, G), counts (M,) int64."""
    none = centres.new_empty(0, dtype=torch.int64)
    indices, found, start = [none.view(0, num_samples)], [none], 0
    for cloud, at in zip(points.split(list(counts)), centres.split(list(centre_counts)), strict=True):
        index, count = query(cloud[None], at[None], radius, num_samples)
        indices.append(index[0] + (start if len(cloud) else 0))
        found.append(count[0])
        start += len(cloud)
    return torch.cat(indices), torch.cat(found)
