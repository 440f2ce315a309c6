"""Pooling over groups of rows in plain torch."""

import torch
from torch import Tensor


def rows_by_segment(segment: Tensor, num_segments: int) -> tuple[Tensor, Tensor]:
    """(N,) -> row numbers (N,), starts (S + 1,)."""
    counts = torch.bincount(segment, minlength=num_segments)  # (S,)
    return segment.argsort(stable=True), torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _group_of(rows: Tensor, start: Tensor) -> Tensor:
    """Which group each of the K rows belongs to. -> (K,)."""
    groups = torch.arange(len(start) - 1, device=start.device)
    return groups.repeat_interleave(start.diff(), output_size=len(rows))


def pool_max(features: Tensor, rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """(N, C) -> the largest (S, C), and the first row that holds it (S, C), -1 in an empty group."""
    taken = features[rows]  # (K, C)
    groups = _group_of(rows, start)[:, None].expand_as(taken)
    pooled = features.new_zeros(len(start) - 1, features.shape[1])  # (S, C)
    pooled.scatter_reduce_(0, groups, taken, "amax", include_self=False)
    is_largest = (taken == pooled.gather(0, groups)) | taken.isnan()
    none = len(rows)
    place = torch.where(is_largest, torch.arange(none, device=rows.device)[:, None], none)  # (K, C)
    first = torch.full_like(pooled, none, dtype=torch.int64).scatter_reduce_(0, groups, place, "amin")
    return pooled, torch.cat([rows, rows.new_full((1,), -1)])[first].int()


def pool_max_backward(grad: Tensor, source: Tensor, _rows: Tensor, _start: Tensor, num_rows: int) -> Tensor:
    """(S, C) -> (N, C). ``source`` says it all; only the GPU's kernel walks from the rows to their groups."""
    spare = torch.where(source >= 0, source, num_rows).long()  # the last row collects what belongs to nobody
    return grad.new_zeros(num_rows + 1, grad.shape[1]).scatter_add_(0, spare, grad)[:num_rows]


def pool_mean(features: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    """(N, C) -> (S, C)."""
    pooled = features.new_zeros(len(start) - 1, features.shape[1])
    pooled.index_add_(0, _group_of(rows, start), features[rows])
    return pooled / start.diff().clamp(min=1)[:, None]


def pool_mean_backward(grad: Tensor, rows: Tensor, start: Tensor, num_rows: int) -> Tensor:
    """(S, C) -> (N, C)."""
    share = grad / start.diff().clamp(min=1)[:, None]
    return grad.new_zeros(num_rows, grad.shape[1]).index_add_(0, rows, share[_group_of(rows, start)])
