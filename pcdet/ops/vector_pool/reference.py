"""Vector pooling in plain torch."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

PAIRS_AT_ONCE = 1 << 24  # bounds the memory of the distances


def three_nn(
    support: Tensor,  # (N, 3)
    counts: Sequence[int],
    centres: Tensor,  # (M, 3)
    centre_counts: Sequence[int],
    grid_centres: Tensor,  # (M, T, 3)
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """-> squared distances (M, T, 3), rows (M, T, 3) int64."""
    squared = torch.full_like(grid_centres, torch.inf)
    rows = torch.full_like(grid_centres, -1, dtype=torch.int64)
    cells = grid_centres.shape[1]
    for centre, row in _neighbours(support, counts, centres, centre_counts, radius, cap, ball, cells):
        owner, held = torch.unique_consecutive(centre, return_counts=True)  # (m,) centres with a neighbour
        place = torch.arange(len(row), device=row.device) - (held.cumsum(0) - held).repeat_interleave(held)
        table = row.new_full((len(owner), int(held.max()) if len(held) else 1), -1)  # (m, most)
        table[torch.arange(len(owner), device=row.device).repeat_interleave(held), place] = row
        dx, dy, dz = (grid_centres[owner][:, :, None] - support[table][:, None]).unbind(-1)  # (m, T, most)
        near = dx * dx + dy * dy + dz * dz
        near = torch.where((table[:, None] >= 0) & (near < torch.inf), near, torch.inf)  # drops NaN as well
        squared[owner], rows[owner] = _three_smallest(near, table)
    return squared, rows


def _three_smallest(squared: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """(m, T, most), (m, most) -> values and rows (m, T, 3); the first of equals, the smallest where there are less."""
    values, rows = [], []
    for _ in range(3):
        place = squared.argmin(dim=2, keepdim=True)  # (m, T, 1), the first of equals
        value = squared.gather(2, place)
        row = torch.where(value < torch.inf, table[:, None].expand_as(squared).gather(2, place), -1)
        values.append(value if not values else torch.where(value < torch.inf, value, values[0]))
        rows.append(row if not rows else torch.where(value < torch.inf, row, rows[0]))
        squared = squared.scatter(2, place, torch.inf)
    return torch.cat(values, dim=2), torch.cat(rows, dim=2)


def first_members(
    support: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    num_voxels: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """The first row of each cell, of the ``cap`` cells that are filled first. -> (K,), starts (M * T + 1,)."""
    rows, start = all_members(support, counts, centres, centre_counts, num_voxels, radius, -1, ball)
    filled = start.diff() > 0  # (M * T,)
    first = torch.where(filled, torch.cat([rows, rows.new_zeros(1)])[start[:-1]], len(support))
    first = first.view(len(centres), num_voxels[0] * num_voxels[1] * num_voxels[2])  # (M, T)
    rank = first.argsort(dim=1).argsort(dim=1)  # rows differ, so there are no ties among filled cells
    kept = (first < len(support)) & ((rank < cap) | (cap < 0))
    return first[kept], _starts(kept.flatten().long())


def all_members(
    support: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    num_voxels: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """The rows of the first ``cap`` neighbours of each centre (all if -1), by cell. -> (K,), starts (M * T + 1,)."""
    cells = num_voxels[0] * num_voxels[1] * num_voxels[2]
    parts = [(torch.empty(0, dtype=torch.int64, device=support.device),) * 2]
    for centre, row in _neighbours(support, counts, centres, centre_counts, radius, cap, ball, 1):
        offset = support[row] - centres[centre]
        parts.append((row, centre * cells + cell_of(offset, num_voxels, radius)))
    row, cell = (torch.cat(part) for part in zip(*parts, strict=True))
    return row[cell.argsort(stable=True)], _starts(torch.bincount(cell, minlength=len(centres) * cells))


def _starts(held: Tensor) -> Tensor:
    return torch.cat([held.new_zeros(1), held.cumsum(0)])


def cell_of(offset: Tensor, num_voxels: Sequence[int], radius: float) -> Tensor:
    """(K, 3) offsets from the centre in float32 -> (K,) flat cells, clipped as a whole."""
    number = torch.tensor(num_voxels, dtype=torch.float32, device=offset.device)
    reach = offset.new_tensor(radius)
    cell = ((offset + reach) / (reach * 2 / number)).floor().long()
    flat = (cell[:, 0] * num_voxels[1] + cell[:, 1]) * num_voxels[2] + cell[:, 2]
    return flat.clamp(0, num_voxels[0] * num_voxels[1] * num_voxels[2] - 1)


def _neighbours(
    support: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
    width: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of centre (K,) and support row (K,), in the order of both, for some centres at a time.

    ``width`` tells how many numbers the caller holds for each pair.
    """
    first_row, first_centre = 0, 0
    for number, wanted in zip(counts, centre_counts, strict=True):
        cloud, places = support[first_row : first_row + number], centres[first_centre : first_centre + wanted]
        step = max(1, PAIRS_AT_ONCE // max(1, number * width))
        for low in range(0, wanted, step):
            inside = _inside(cloud, places[low : low + step], radius, ball)  # (m, n)
            if cap > 0:
                inside &= inside.cumsum(dim=1) <= cap
            centre, row = inside.nonzero(as_tuple=True)
            yield centre + first_centre + low, row + first_row
        first_row, first_centre = first_row + number, first_centre + wanted


def _inside(cloud: Tensor, places: Tensor, radius: float, ball: bool) -> Tensor:
    """(n, 3), (m, 3) -> (m, n) bool, in float32."""
    reach = cloud.new_tensor(radius)
    if not ball:
        return ((cloud[None] - places[:, None]).abs() <= reach).all(dim=2)
    x, y, z = (cloud[None] - places[:, None]).unbind(-1)
    return x * x + y * y + z * z <= reach * reach
