"""Boxes as residuals to anchors (Yan et al., "SECOND: Sparsely Embedded Convolutional Detection", sec. 3.2)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

SMALLEST = 1e-5  # metres; keeps the logarithm of a size finite


@dataclass(frozen=True)
class ResidualCoder:
    """Codes of a box relative to an anchor: offsets over the anchor's size, logarithms of sizes, difference of angle.

    ``encode_angle_by_sincos`` replaces the difference of the headings by the differences of their cosines and sines.
    Columns beyond the seventh of a box are coded as plain differences.
    """

    encode_angle_by_sincos: bool = False
    clockwise: ClassVar[bool] = False

    @property
    def code_size(self) -> int:
        return 8 if self.encode_angle_by_sincos else 7

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """(..., 7+), (..., 7+) -> (..., code_size+) codes."""
        size, anchor_size = boxes[..., 3:6].clamp(min=SMALLEST), anchors[..., 3:6].clamp(min=SMALLEST)
        offset = (boxes[..., :3] - anchors[..., :3]) / offset_scale(anchor_size)
        heading, anchor_heading = boxes[..., 6:7], anchors[..., 6:7]
        if self.encode_angle_by_sincos:
            angle = [heading.cos() - anchor_heading.cos(), heading.sin() - anchor_heading.sin()]
        else:
            angle = [heading - anchor_heading]
        return torch.cat([offset, (size / anchor_size).log(), *angle, boxes[..., 7:] - anchors[..., 7:]], dim=-1)

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """(..., code_size+), (..., 7+) -> (..., 7+) boxes; the inverse of :meth:`encode` (headings modulo 2 pi)."""
        anchor_size = anchors[..., 3:6]
        centre = codes[..., :3] * offset_scale(anchor_size) + anchors[..., :3]
        size = codes[..., 3:6].exp() * anchor_size
        anchor_heading = anchors[..., 6:7]
        if self.encode_angle_by_sincos:
            cos, sin = codes[..., 6:7] + anchor_heading.cos(), codes[..., 7:8] + anchor_heading.sin()
            heading = torch.atan2(sin, cos)
        else:
            heading = codes[..., 6:7] + anchor_heading
        return torch.cat([centre, size, heading, codes[..., self.code_size :] + anchors[..., 7:]], dim=-1)


def offset_scale(anchor_size: Tensor) -> Tensor:
    """What offsets are measured in: the diagonal of the base along x and y, the height along z. (..., 3) -> (..., 3)"""
    diagonal = (anchor_size[..., 0:1] ** 2 + anchor_size[..., 1:2] ** 2).sqrt()
    return torch.cat([diagonal, diagonal, anchor_size[..., 2:3]], dim=-1)
