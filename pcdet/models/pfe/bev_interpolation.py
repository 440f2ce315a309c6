"""Features of a bird's-eye-view map at points."""

import torch
from torch import Tensor


def interpolate_bev(
    bev: Tensor,  # (B, C, H, W)
    scene: Tensor,  # (N,) int64
    x: Tensor,  # (N,) in cells: 0 is the first column itself, not its border
    y: Tensor,  # (N,) in cells
) -> Tensor:
    """Bilinear interpolation between the four nearest cells. -> (N, C)

    As in OpenPCDet, the cells' columns and rows are clamped to the map and the weights are taken after that: a point
    beyond the last column or row gets weights that add up to 0 across it, so its features fade to zero or
    extrapolate.
    """
    height, width = bev.shape[2:]
    left, top = x.floor().long(), y.floor().long()
    x0, x1 = left.clamp(0, width - 1), (left + 1).clamp(0, width - 1)
    y0, y1 = top.clamp(0, height - 1), (top + 1).clamp(0, height - 1)
    column = torch.stack([x0, x0, x1, x1], dim=1)  # (N, 4)
    row = torch.stack([y0, y1, y0, y1], dim=1)
    to_left, to_right, to_top, to_bottom = x - x0, x1 - x, y - y0, y1 - y
    weight = torch.stack([to_right * to_bottom, to_right * to_top, to_left * to_bottom, to_left * to_top], dim=1)
    cells = bev[scene.unsqueeze(1), :, row, column]  # (N, 4, C)
    return (cells * weight.unsqueeze(-1)).sum(dim=1)
