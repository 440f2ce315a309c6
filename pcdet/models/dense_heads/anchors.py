"""Anchors: boxes of a few fixed sizes and headings at every cell of a feature map (SECOND, sec. 3.2)."""

import math
from typing import TypedDict

import torch
from torch import Tensor

from pcdet.structures.dataset_info import DatasetInfo


class AnchorAlignment(TypedDict, total=False):
    """What a block of ANCHOR_GENERATOR_CONFIG may leave out."""

    align_center: bool


class AnchorClass(AnchorAlignment):
    """One block of ANCHOR_GENERATOR_CONFIG: the anchors of one class."""

    class_name: str
    anchor_sizes: list[list[float]]  # dx, dy, dz in metres
    anchor_rotations: list[float]  # radians
    anchor_bottom_heights: list[float]  # z of the bottom, metres
    feature_map_stride: int
    matched_threshold: float
    unmatched_threshold: float


def anchor_grid(info: DatasetInfo, block: AnchorClass) -> Tensor:
    """The anchors of one class at every cell. -> (Y, X, K, 7) float32, K running over heights, sizes, headings.

    With ``align_center`` anchors stand in the middle of the cells; otherwise the first and the last stand on the
    border of the range and the others evenly between them.
    """
    nx, ny = (cells // block["feature_map_stride"] for cells in info.grid_size[:2])
    low, high = info.point_cloud_range[:3], info.point_cloud_range[3:]
    centred = block.get("align_center", False)
    shapes = _shapes(block)  # (K, 5) z, dx, dy, dz, heading
    x = _axis(low[0], high[0], nx, centred).view(1, nx, 1, 1).expand(ny, nx, len(shapes), 1)
    y = _axis(low[1], high[1], ny, centred).view(ny, 1, 1, 1).expand(ny, nx, len(shapes), 1)
    return torch.cat([x, y, shapes.expand(ny, nx, -1, -1)], dim=-1)


def _shapes(block: AnchorClass) -> Tensor:
    bottoms = torch.tensor(block["anchor_bottom_heights"], dtype=torch.float32)
    sizes = torch.tensor(block["anchor_sizes"], dtype=torch.float32).view(-1, 3)
    headings = torch.tensor(block["anchor_rotations"], dtype=torch.float32)
    rows = [
        torch.cat([(bottom + size[2] / 2).view(1), size, heading.view(1)])
        for bottom in bottoms
        for size in sizes
        for heading in headings
    ]
    return torch.stack(rows)


def _axis(low: float, high: float, cells: int, centred: bool) -> Tensor:
    """Coordinates of the cells' anchors along one axis, rounded as OpenPCDet rounds them (range in float32)."""
    start, end = (torch.tensor(v, dtype=torch.float32).item() for v in (low, high))
    if cells == 1:
        return torch.tensor([(start + end) / 2 if centred else start])
    step = (end - start) / (cells if centred else cells - 1)
    if centred:
        start += step / 2
    axis = torch.arange(start, start + (cells - 0.5) * step, step, dtype=torch.float32)
    assert len(axis) == cells and math.isfinite(step)
    return axis
