"""Points in a regular grid within proposals."""

import torch
from torch import Tensor


def roi_grid_points(
    rois: Tensor,  # (R, 7+)
    grid_size: int,
) -> Tensor:
    """Centres of the cells that ``grid_size`` cuts along each axis of a proposal, in the scene. -> (R, G^3, 3)

    x of the proposal's own frame is slowest.
    """
    steps = (torch.arange(grid_size, device=rois.device, dtype=rois.dtype) + 0.5) / grid_size - 0.5  # (G,)
    unit = torch.cartesian_prod(steps, steps, steps)  # (G^3, 3)
    local = unit * rois[:, None, 3:6]  # (R, G^3, 3)
    cos, sin = rois[:, 6:7].cos(), rois[:, 6:7].sin()  # (R, 1)
    x, y, z = local.unbind(dim=-1)
    turned = torch.stack([x * cos - y * sin, x * sin + y * cos, z], dim=-1)
    return turned + rois[:, None, :3]
