"""Points of the cells of boxes in plain torch."""

from collections.abc import Sequence

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
        cell = cell_of(some_points[point], some_rois[roi], out_size)
        parts.append(
            torch.stack([point + first_point, cell + (roi + first_roi) * out_size[0] * out_size[1] * out_size[2]])
        )
        first_roi, first_point = first_roi + len(some_rois), first_point + len(some_points)
    point, cell = torch.cat(parts, dim=1)
    order = cell.argsort(stable=True)
    point, cell = point[order], cell[order]
    place = torch.arange(len(cell), device=cell.device)
    is_kept = place - torch.searchsorted(cell, cell) < kept  # searchsorted: where the cell begins
    return point[is_kept], cell[is_kept]


def cell_of(points: Tensor, rois: Tensor, out_size: Sequence[int]) -> Tensor:
    """The flat cell, x slowest, of each point in the box of the same row. (P, 3+), (P, 7+) -> (P,)."""
    x, y, z, _, _, _, cos, sin = points_in_boxes.box_table(rois, 0.0).unbind(1)
    offset = points[:, :3].double() - torch.stack([x, y, z], dim=1)
    dx, dy, dz = offset.unbind(1)
    local = torch.stack([dx * cos + dy * sin, dy * cos - dx * sin, dz], dim=1)  # (P, 3)
    shape, size = torch.tensor(out_size, device=points.device), rois[:, 3:6].double()
    cell = ((local + size / 2) / (size / shape)).nan_to_num(0.0)  # NaN where a box has no size
    cell = torch.minimum(cell.clamp(min=0).floor(), shape - 1.0).long()
    return (cell[:, 0] * out_size[1] + cell[:, 1]) * out_size[2] + cell[:, 2]
