"""Targets of heads that find objects as peaks of a map (Yin et al., "Center-based 3D Object Detection", sec. 4)."""

from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.constants import constant


class MapGrid(NamedTuple):
    """Where the cells of a feature map lie."""

    shape: tuple[int, int]  # cells along y and x
    origin: tuple[float, float]  # x and y of the first cell's corner, metres
    voxel_size: tuple[float, float]  # x and y, metres
    stride: int  # voxels in a cell, along both

    @classmethod
    def of(cls, info: DatasetInfo, stride: int) -> "MapGrid":
        """The map of a grid that was reduced ``stride`` times."""
        nx, ny, _ = info.grid_size
        return cls((ny // stride, nx // stride), info.point_cloud_range[:2], info.voxel_size[:2], stride)

    def to_cells(self, xy: Tensor) -> Tensor:
        """Metres (..., 2) -> places in units of cells (..., 2), x first."""
        return (xy - constant(self.origin, xy)) / constant(self.voxel_size, xy) / self.stride

    def to_metres(self, cells: Tensor) -> Tensor:
        """The inverse of :meth:`to_cells`."""
        return cells * self.stride * constant(self.voxel_size, cells) + constant(self.origin, cells)


class PeakTargets(NamedTuple):
    """What one head should predict for T slots of objects a scene; a slot that is not in the mask is all zeros."""

    heatmap: Tensor  # (B, K, Y, X) in [0, 1], exactly 1 at the centres
    codes: Tensor  # (B, T, 8+) centre within its cell (x, y), z, log of the size, cosine, sine, velocity
    cells: Tensor  # (B, T) int64; y * X + x of the centre's cell
    mask: Tensor  # (B, T) bool
    boxes: Tensor  # (B, T, 8+) the boxes, with the head's own 1-based class


def peak_targets(
    gt_boxes: Tensor,  # (B, M, 8+) x y z dx dy dz heading, velocity where there is one, class
    classes: Tensor,  # (B, M) int64; class of the head, from 0, or -1 for boxes that are none of its business
    num_class: int,
    grid: MapGrid,
    slots: int,
    min_overlap: float,
    min_radius: int,
) -> PeakTargets:
    """Targets of one head. A scene's boxes fill its ``slots`` in their order; those that find none are left out.

    A centre outside the map belongs to the nearest cell of its border. Boxes without extent are not looked for.
    ``min_overlap`` and ``min_radius`` (cells) decide how far around a centre a peak still counts as near.
    """
    gt_boxes = gt_boxes.float()
    slot = (classes >= 0).cumsum(1) - 1  # (B, M)
    found = (classes >= 0) & (slot < slots)
    boxes = _in_slots(torch.cat([gt_boxes[..., :-1], classes.unsqueeze(2) + 1], dim=2), slot, found, slots)

    real = found & (gt_boxes[..., 3:6] > 0).all(dim=2)  # (B, M)
    last = constant(grid.shape[::-1], gt_boxes) - 0.5  # x, y
    centre = torch.minimum(grid.to_cells(gt_boxes[..., :2]).clamp(min=0), last)  # (B, M, 2)
    cell = centre.long()  # (B, M, 2)
    size = gt_boxes[..., 3:5] / constant(grid.voxel_size, gt_boxes) / grid.stride  # (B, M, 2)
    radius = gaussian_radius(size[..., 0], size[..., 1], min_overlap).long().clamp(min=min_radius)
    scene = torch.arange(len(gt_boxes), device=gt_boxes.device).unsqueeze(1)  # (B, 1)
    # A box that is not drawn goes to a plane behind the last.
    planes = len(gt_boxes) * num_class
    plane = torch.where(real, scene * num_class + classes, planes)
    radius = torch.where(real, radius, min_radius)
    heatmap = draw_peaks(plane.flatten(), cell.flatten(0, 1), radius.flatten(), planes, grid.shape)

    z, heading = gt_boxes[..., 2:3], gt_boxes[..., 6:7]
    parts = [centre - cell, z, gt_boxes[..., 3:6].log(), heading.cos(), heading.sin(), gt_boxes[..., 7:-1]]
    codes = _in_slots(torch.cat(parts, dim=2), slot, real, slots)
    cells = _in_slots((cell[..., 1] * grid.shape[1] + cell[..., 0]).unsqueeze(2), slot, real, slots)
    mask = _in_slots(real.unsqueeze(2), slot, real, slots)
    heatmap = heatmap.view(len(gt_boxes), num_class, *grid.shape)
    return PeakTargets(heatmap, codes, cells.squeeze(2), mask.squeeze(2), boxes)


def _in_slots(rows: Tensor, slot: Tensor, chosen: Tensor, slots: int) -> Tensor:
    """The ``chosen`` (B, M) rows (B, M, C) at their slots, zeros elsewhere. -> (B, slots, C)"""
    place = torch.where(chosen, slot, slots).unsqueeze(2).expand_as(rows)  # the others fall behind the last slot
    return rows.new_zeros(len(rows), slots + 1, rows.shape[2]).scatter(1, place, rows)[:, :slots]


def gaussian_radius(length: Tensor, width: Tensor, min_overlap: float) -> Tensor:
    """How far both corners of a box may be off, in units of its sides, for ``min_overlap`` with the true one.

    CornerNet, sec. 3.2. The roots are those of its published code, which divides all three by 2, whatever the
    leading coefficient.
    """
    total, area = length + width, length * width
    equations = (
        (1, total, area * (1 - min_overlap) / (1 + min_overlap)),
        (4, 2 * total, (1 - min_overlap) * area),
        (4 * min_overlap, -2 * min_overlap * total, (min_overlap - 1) * area),
    )
    roots = [(b + (b**2 - 4 * a * c).sqrt()) / 2 for a, b, c in equations]
    return torch.minimum(torch.minimum(roots[0], roots[1]), roots[2])


def draw_peaks(
    plane: Tensor,  # (n,) int64; the map that a peak belongs to; one of ``planes`` is not drawn
    cell: Tensor,  # (n, 2) int64; x, y
    radius: Tensor,  # (n,) int64; cells
    planes: int,
    shape: tuple[int, int],
) -> Tensor:
    """Square patches of Gaussians, 1 in the middle and about 0 at their ends; the highest counts. -> (planes, Y, X)

    The standard deviation is a sixth of the patch's ``2 * radius + 1`` cells.
    """
    height, width = shape
    total = planes * height * width
    heatmap = torch.zeros(total + 1, device=cell.device)  # the last is for what lies outside
    if len(cell) == 0:
        return heatmap[:-1].view(planes, height, width)
    reach = int(radius.max())
    step = torch.arange(-reach, reach + 1, device=cell.device)  # (D,)
    x, y = (cell.unsqueeze(2) + step).unbind(1)  # (n, D)
    near = step.abs() <= radius.unsqueeze(1)  # (n, D)
    in_x, in_y = near & (x >= 0) & (x < width), near & (y >= 0) & (y < height)
    sigma = ((2 * radius + 1) / 6).view(-1, 1, 1)
    squared = step.square().unsqueeze(1) + step.square()  # (D, D) y, x
    value = (-squared / (2 * sigma.square())).exp()  # (n, D, D)
    index = (plane.unsqueeze(1) * height + y).unsqueeze(2) * width + x.unsqueeze(1)  # (n, D, D)
    keep = in_y.unsqueeze(2) & in_x.unsqueeze(1) & (plane < planes).view(-1, 1, 1)
    index = torch.where(keep, index, total).flatten()
    return heatmap.scatter_reduce(0, index, value.flatten(), "amax")[:-1].view(planes, height, width)
