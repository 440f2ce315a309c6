"""Targets of heads that find objects as peaks of a map (Yin et al., "Center-based 3D Object Detection", sec. 4)."""

from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.structures.dataset_info import DatasetInfo


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
        return (xy - xy.new_tensor(self.origin)) / xy.new_tensor(self.voxel_size) / self.stride

    def to_metres(self, cells: Tensor) -> Tensor:
        """The inverse of :meth:`to_cells`."""
        return cells * self.stride * cells.new_tensor(self.voxel_size) + cells.new_tensor(self.origin)


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
    scene, row = ((classes >= 0) & (slot < slots)).nonzero(as_tuple=True)  # (n,)
    slot, classes, found = slot[scene, row], classes[scene, row], gt_boxes[scene, row]  # (n,), (n,), (n, 8+)
    boxes = gt_boxes.new_zeros(len(gt_boxes), slots, gt_boxes.shape[2])
    boxes[scene, slot] = torch.cat([found[:, :-1], classes.unsqueeze(1) + 1], dim=1)

    real = (found[:, 3:6] > 0).all(dim=1).nonzero()[:, 0]
    scene, slot, classes, found = scene[real], slot[real], classes[real], found[real]
    last = found.new_tensor(grid.shape[::-1]) - 0.5  # x, y
    centre = torch.minimum(grid.to_cells(found[:, :2]).clamp(min=0), last)  # (n, 2)
    cell = centre.long()  # (n, 2)
    size = found[:, 3:5] / found.new_tensor(grid.voxel_size) / grid.stride  # (n, 2)
    radius = gaussian_radius(size[:, 0], size[:, 1], min_overlap).long().clamp(min=min_radius)
    heatmap = draw_peaks(scene * num_class + classes, cell, radius, len(gt_boxes) * num_class, grid.shape)

    code = torch.cat(
        [centre - cell, found[:, 2:3], found[:, 3:6].log(), found[:, 6:7].cos(), found[:, 6:7].sin(), found[:, 7:-1]], 1
    )
    codes = gt_boxes.new_zeros(len(gt_boxes), slots, code.shape[1])
    codes[scene, slot] = code
    cells = slot.new_zeros(len(gt_boxes), slots)
    cells[scene, slot] = cell[:, 1] * grid.shape[1] + cell[:, 0]
    mask = torch.zeros_like(cells, dtype=torch.bool)
    mask[scene, slot] = True
    return PeakTargets(heatmap.view(len(gt_boxes), num_class, *grid.shape), codes, cells, mask, boxes)


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
    plane: Tensor,  # (n,) int64; the map that a peak belongs to
    cell: Tensor,  # (n, 2) int64; x, y
    radius: Tensor,  # (n,) int64; cells
    planes: int,
    shape: tuple[int, int],
) -> Tensor:
    """Square patches of Gaussians, 1 in the middle and about 0 at their ends; the highest counts. -> (planes, Y, X)

    The standard deviation is a sixth of the patch's ``2 * radius + 1`` cells.
    """
    height, width = shape
    heatmap = torch.zeros(planes * height * width, device=cell.device)
    if len(cell) == 0:
        return heatmap.view(planes, height, width)
    reach = int(radius.max())
    step = torch.arange(-reach, reach + 1, device=cell.device)  # (D,)
    x, y = (cell.unsqueeze(2) + step).unbind(1)  # (n, D)
    near = step.abs() <= radius.unsqueeze(1)  # (n, D)
    in_x, in_y = near & (x >= 0) & (x < width), near & (y >= 0) & (y < height)
    sigma = ((2 * radius + 1) / 6).view(-1, 1, 1)
    squared = step.square().unsqueeze(1) + step.square()  # (D, D) y, x
    value = (-squared / (2 * sigma.square())).exp()  # (n, D, D)
    index = (plane.unsqueeze(1) * height + y).unsqueeze(2) * width + x.unsqueeze(1)  # (n, D, D)
    keep = in_y.unsqueeze(2) & in_x.unsqueeze(1)
    return heatmap.scatter_reduce(0, index[keep], value[keep], "amax").view(planes, height, width)
