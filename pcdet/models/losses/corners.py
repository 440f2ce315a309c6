"""Distance of corners, which judges centre, size and heading of a box together."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pcdet.structures.boxes import box_corners


def corner_loss(boxes: Tensor, gt_boxes: Tensor) -> Tensor:
    """Mean Huber loss of the distances between the eight corners (Frustum PointNets, sec. 4.4). (M, 7) x 2 -> (M,)

    A box that faces the other way costs nothing. Metres; quadratic below 1 m.
    """
    corners = box_corners(boxes)  # (M, 8, 3)
    turned = torch.cat([gt_boxes[:, :6], gt_boxes[:, 6:7] + math.pi], dim=1)
    distance = torch.minimum(
        (corners - box_corners(gt_boxes)).norm(dim=2), (corners - box_corners(turned)).norm(dim=2)
    )  # (M, 8)
    return F.smooth_l1_loss(distance, torch.zeros_like(distance), reduction="none", beta=1.0).mean(dim=1)
