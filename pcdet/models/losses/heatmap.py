"""Losses of heads that find objects as peaks of a map (Zhou et al., "Objects as Points", sec. 3)."""

import torch
from torch import Tensor

from pcdet.models.losses.normalizer import normalizer


def heatmap_focal_loss(
    heatmap: Tensor,  # (B, K, Y, X) probabilities, above 0 and below 1
    target: Tensor,  # (B, K, Y, X) in [0, 1]; exactly 1 at the centres
) -> Tensor:
    """Focal loss that forgives near misses (CornerNet, sec. 3.2, eq. 1), over the number of centres. -> ()

    Without centres it is the sum over the background.
    """
    centre = target == 1
    hit = heatmap.log() * (1 - heatmap).square() * centre
    miss = (1 - heatmap).log() * heatmap.square() * (1 - target).pow(4) * ~centre
    return -(hit.sum() + miss.sum()) / normalizer(centre.sum())


def mean_code_error(
    codes: Tensor,  # (B, T, C)
    targets: Tensor,  # (B, T, C)
    mask: Tensor,  # (B, T) bool: the rows that count
) -> Tensor:
    """Mean absolute error of each code; 0 without rows. A target that is not a number costs nothing. -> (C,)"""
    error = torch.where(mask.unsqueeze(2) & ~targets.isnan(), codes - targets, 0).abs()
    return error.sum((0, 1)) / normalizer(mask.sum())
