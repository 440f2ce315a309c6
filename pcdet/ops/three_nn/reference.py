"""Three nearest neighbours and interpolation in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

PAIRS_AT_ONCE = 1 << 22  # bounds the memory of the distances


def three_nn_stack(
    unknown: Tensor, unknown_counts: Sequence[int], known: Tensor, known_counts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """(N, 3), (M, 3) float32 -> squared distances (N, 3) float32, global indices (N, 3) int64."""
    squares, indices, start = [unknown.new_empty(0, 3)], [unknown.new_empty(0, 3, dtype=torch.int64)], 0
    for queries, cloud in zip(unknown.split(list(unknown_counts)), known.split(list(known_counts)), strict=True):
        for some in queries.split(max(1, PAIRS_AT_ONCE // max(1, len(cloud)))):
            square, index = _three_nearest(some, cloud)
            squares.append(square)
            indices.append(index + (start if len(cloud) else 0))
        start += len(cloud)
    return torch.cat(squares), torch.cat(indices)


def _three_nearest(unknown: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Of one scene. A float that is not negative sorts as the integer of its bits: one key holds distance and index."""
    dx, dy, dz = (known[:, axis] - unknown[:, axis, None] for axis in range(3))  # (N, M)
    square = (dx * dx + dy * dy + dz * dz).nan_to_num_(nan=torch.inf, posinf=torch.inf)
    key = square.view(torch.int32).long() << 32 | torch.arange(len(known), device=known.device)
    best = key.topk(min(3, len(known)), dim=1, largest=False).values  # (N, <= 3) ascending
    found = (best >> 32).int().view(torch.float32)
    square, index = unknown.new_full((len(unknown), 3), torch.inf), best.new_zeros(len(unknown), 3)
    square[:, : best.shape[1]] = found
    index[:, : best.shape[1]] = torch.where(found < torch.inf, best & 0xFFFFFFFF, 0)
    return square, index


def interpolate(features: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """(M, C), (N, 3), (N, 3) -> (N, C)."""
    a, b, c = (features[index[:, k]] * weight[:, k, None] for k in range(3))  # (N, C)
    return (a + b + c).to(features.dtype)


def spread(values: Tensor, index: Tensor, weight: Tensor, m: int) -> Tensor:
    """The adjoint of :func:`interpolate`. (N, C), (N, 3), (N, 3) -> (m, C)."""
    shares = (values[:, None] * weight[..., None]).flatten(0, 1)  # (N * 3, C)
    return shares.new_zeros(m, values.shape[1]).index_add_(0, index.flatten(), shares).to(values.dtype)
