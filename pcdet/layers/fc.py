"""Fully connected layers over rows, under the names and shapes that checkpoints have."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.row_norm import RowNorm


class RowConv1d(nn.Conv1d):
    """A convolution with kernel 1, applied to rows: its weight (O, I, 1) is that of ``nn.Conv1d``.

    On a CPU one matrix product of the rows is several times faster than a convolution of length-1 sequences.
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True):
        super().__init__(in_channels, out_channels, kernel_size=1, bias=bias)

    def forward(self, rows: Tensor) -> Tensor:  # (R, I) -> (R, O)
        return F.linear(rows, self.weight[:, :, 0], self.bias)


def conv1d_stack(
    in_channels: int,
    hidden: Sequence[int],
    out_channels: int | None = None,
    *,
    dropout: float = 0.0,
    layer: type[nn.Module] = RowConv1d,
) -> nn.Sequential:
    """Layers of a head over regions: convolution without bias, norm, ReLU; at the end one convolution with bias.

    ``layer`` may be ``nn.Linear`` instead of the convolution. With ``out_channels`` a dropout layer, of rate 0 too,
    follows the first hidden layer. Without it one follows every hidden layer but the last, where the rate is above 0.
    (The indices of checkpoints' names depend on this.)
    """
    layers: list[nn.Module] = []
    for i, width in enumerate(hidden):
        layers += [layer(in_channels, width, bias=False), RowNorm(width), nn.ReLU()]
        if (i == 0) if out_channels is not None else (dropout > 0 and i != len(hidden) - 1):
            layers.append(nn.Dropout(dropout))
        in_channels = width
    if out_channels is not None:
        layers.append(layer(in_channels, out_channels))
    return nn.Sequential(*layers)


def linear_stack(in_channels: int, hidden: Sequence[int], out_channels: int) -> nn.Sequential:
    """Layers of a head over points: linear without bias, norm, ReLU; at the end one linear layer with bias."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(in_channels, width, bias=False), RowNorm(width), nn.ReLU()]
        in_channels = width
    return nn.Sequential(*layers, nn.Linear(in_channels, out_channels))


def init_xavier(module: nn.Module) -> None:
    """Xavier-normal weights and zero biases for every linear layer and convolution below ``module``."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
