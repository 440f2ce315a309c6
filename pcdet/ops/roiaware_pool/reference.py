"""Points of the cells of boxes in plain torch."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pcdet.ops.points_in_boxes import reference as points_in_boxes

MARGIN = 1e-5  # metres added to each side of a box in its x and y


def assign(
    rois: Tensor,  # (M, 7+)
    points: Tensor,  # (N, 3+)
    roi_counts: Sequence[int],
    point_counts: Sequence[int],
    out_size: Sequence[int],
    kept: int,
) -> tuple[Tensor, Tensor]:
    """-> points (K,), flat cells (K,) ascending, int64; at most ``kept`` points of a cell."""
    parts, first_roi, first_point = [torch.zeros(2, 0, dtype=torch.int64, device=points.device)], 0, 0
    for some_rois, some_points in zip(rois.split(list(roi_counts)), points.split(list(point_counts)), strict=True):
        roi, point = points_in_boxes.mask(some_points, some_rois, MARGIN).nonzero(as_tuple=True)  # (P,) box after box
        cell = cell_of(some_points[point], cell_table(some_rois, out_size)[roi], out_size)
        parts.append(torch.stack([point + first_point, cell + (roi + first_roi) * math.prod(out_size)]))
        first_roi, first_point = first_roi + len(some_rois), first_point + len(some_points)
    point, cell = torch.cat(parts, dim=1)
    order = cell.argsort(stable=True)
    point, cell = point[order], cell[order]
    place = torch.arange(len(cell), device=cell.device)
    is_kept = place - torch.searchsorted(cell, cell) < kept  # searchsorted: where the cell begins
    return point[is_kept], cell[is_kept]


def filled_cells(
    rois: Tensor,
    points: Tensor,
    roi_counts: Tensor,  # (B,)
    point_counts: Tensor,  # (B,)
    out_size: Sequence[int],
    kept: int,
    assign: Callable[..., tuple[Tensor, Tensor]] = assign,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> points (K,) cell after cell, where those of each cell begin (S + 1,), flat cells (S,) ascending; int64."""
    point, cell = assign(rois, points, roi_counts.tolist(), point_counts.tolist(), out_size, kept)
    filled, held = torch.unique_consecutive(cell, return_counts=True)  # (S,)
    return point, torch.cat([held.new_zeros(1), held.cumsum(0)]), filled


def cell_table(rois: Tensor, out_size: Sequence[int]) -> Tensor:
    """(M, 7+) -> (M, 11) float32: centre x y z, cos, sin of minus the heading, half sizes, sizes of a cell."""
    size, heading = rois[:, 3:6].float(), -rois[:, 6:7].float()
    step = size / size.new_tensor(out_size)
    return torch.cat([rois[:, :3].float(), heading.cos(), heading.sin(), size / 2, step], dim=1)


def cell_of(points: Tensor, table: Tensor, out_size: Sequence[int]) -> Tensor:
    """The flat cell, x slowest, of each point in the box of the same row. (P, 3+), (P, 11) -> (P,).

    In float32 and in the order of the original: points on the border of two cells, as those of voxels in an aligned
    box are, fall where they fall there.
    """
    cos, sin = table[:, 3], table[:, 4]
    dx, dy, dz = (points[:, :3].float() - table[:, :3]).unbind(1)
    local = torch.stack([dx * cos + dy * -sin, dx * sin + dy * cos, dz], dim=1)  # (P, 3)
    cell = ((local + table[:, 5:8]) / table[:, 8:]).nan_to_num(0.0)  # NaN where a box has no size
    cell = torch.minimum(cell.clamp(min=0), cell.new_tensor(out_size) - 1).long()
    return (cell[:, 0] * out_size[1] + cell[:, 1]) * out_size[2] + cell[:, 2]
