"""Losses of single predictions, not summed. Each is a function of tensors; the caller weighs and sums."""

import torch
import torch.nn.functional as F
from torch import Tensor


def sigmoid_focal_loss(logits: Tensor, targets: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Focal loss of independent classes (Lin et al., "Focal Loss for Dense Object Detection", eq. 5).

    ``targets`` are 0 or 1 and have the shape of ``logits``, as the result has.
    """
    cross_entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    probability = logits.sigmoid()
    miss = probability + targets - 2 * probability * targets  # p where the target is 0, 1 - p where it is 1
    balance = (1 - alpha) + (2 * alpha - 1) * targets
    return balance * miss.pow(gamma) * cross_entropy


def smooth_l1_loss(predictions: Tensor, targets: Tensor, code_weights: Tensor, beta: float = 1 / 9) -> Tensor:
    """Smooth L1 of codes (..., C) with one weight a code (C,): quadratic below ``beta``. -> (..., C)

    A target that is not a number costs nothing. ``beta`` 0 is the plain L1 loss.
    """
    difference = torch.where(targets.isnan(), 0, predictions - targets) * code_weights
    if beta == 0:
        return difference.abs()
    return F.smooth_l1_loss(difference, torch.zeros_like(difference), reduction="none", beta=beta)


def sine_difference(predictions: Tensor, targets: Tensor, column: int = 6) -> tuple[Tensor, Tensor]:
    """Replace one angle of both by terms whose difference is ``sin(prediction - target)`` (SECOND, sec. 3.3.1).

    A box turned by half a turn then costs nothing, and a separate classifier says which way it faces.
    """
    a, b = predictions[..., column : column + 1], targets[..., column : column + 1]

    def with_angle(codes: Tensor, angle: Tensor) -> Tensor:
        return torch.cat([codes[..., :column], angle, codes[..., column + 1 :]], dim=-1)

    return with_angle(predictions, a.sin() * b.cos()), with_angle(targets, a.cos() * b.sin())
