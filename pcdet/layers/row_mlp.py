"""The shared MLP of PointNet++ (Qi et al. 2017, sec. 3.2) over rows, under the names that checkpoints have."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.row_norm import RowNorm
from pcdet.layers.weighted_norm import run_weighted


class RowConv2d(nn.Conv2d):
    """A convolution with kernel 1, applied to rows: its weight (O, I, 1, 1) is that of ``nn.Conv2d``."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True):
        super().__init__(in_channels, out_channels, kernel_size=1, bias=bias)

    def forward(self, rows: Tensor) -> Tensor:  # (..., I) -> (..., O)
        return F.linear(rows, self.weight.flatten(1), self.bias)


class RowMLP(nn.Sequential):
    """Per layer a 1x1 convolution without bias, batch norm and ReLU, on rows (R, C) instead of an image (B, C, H, W).

    The indices in the sequence are OpenPCDet's (0 convolution, 1 norm, 2 ReLU, 3 convolution ...), and the statistics
    over all rows are those over all positions. The first convolution can be called on its own: being linear, it may
    run before neighbours are gathered. Zero rows and one row are legal.

    Args:
        channels: of the input, then of each layer's output.
    """

    def __init__(self, channels: Sequence[int]):
        layers: list[nn.Module] = []
        for width_in, width_out in zip(channels[:-1], channels[1:], strict=True):
            layers += [RowConv2d(width_in, width_out, bias=False), RowNorm(width_out), nn.ReLU(inplace=True)]
        super().__init__(*layers)
        self.out_channels = channels[-1]

    def forward(self, rows: Tensor) -> Tensor:  # (R, C0) -> (R, CL)
        return self.rest(self.first(rows))

    def first(self, rows: Tensor) -> Tensor:  # (..., C0) -> (..., C1)
        """The first convolution, without its norm."""
        return self[0](rows)

    def rest(
        self,
        rows: Tensor,  # (R, C1)
        weight: Tensor | None = None,  # (R,) how many equal rows each stands for
    ) -> Tensor:
        """Everything after the first convolution. -> (R, CL)"""
        return run_weighted(list(self)[1:], rows, weight)
