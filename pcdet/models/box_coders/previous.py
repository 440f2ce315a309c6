"""Codes of older checkpoints: as :class:`~pcdet.models.box_coders.residual.ResidualCoder`, in another order or sense.

Before it settled on one box convention, OpenPCDet trained with the width before the length, and with headings that turn
clockwise from -y. These coders keep such weights readable.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pcdet.models.box_coders.residual import ResidualCoder

ORDER = [0, 1, 2, 4, 3]  # of the first codes; the exchange of two is its own inverse


@dataclass(frozen=True)
class PreviousResidualDecoder:
    """Codes as those of a residual coder, with the code of dy before that of dx.

    With it an anchor head predicts boxes whose headings are ``clockwise``, and turns them into ours afterwards.
    """

    code_size: ClassVar[int] = 7
    encode_angle_by_sincos: ClassVar[bool] = False
    clockwise: ClassVar[bool] = True

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """(..., 7+), (..., 7+) -> (..., 7+) codes."""
        return _exchange(ResidualCoder().encode(boxes, anchors))

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """(..., 7+), (..., 7+) -> (..., 7+) boxes; the inverse of :meth:`encode`."""
        return ResidualCoder().decode(_exchange(codes), anchors)


@dataclass(frozen=True)
class PreviousResidualRoIDecoder(PreviousResidualDecoder):
    """The same for proposals, whose own headings are ours: only the code of the heading is counted clockwise."""

    clockwise: ClassVar[bool] = False

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        return _mirror(super().encode(boxes, anchors))

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        return super().decode(_mirror(codes), anchors)


def _exchange(codes: Tensor) -> Tensor:
    return torch.cat([codes[..., ORDER], codes[..., 5:]], dim=-1)


def _mirror(codes: Tensor) -> Tensor:
    return torch.cat([codes[..., :6], -codes[..., 6:7], codes[..., 7:]], dim=-1)
