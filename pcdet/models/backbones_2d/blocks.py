"""Layers that the backbones over the bird's-eye view share."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn


class BevBackboneFeatures(NamedTuple):
    """What a backbone over the bird's-eye view adds to the batch."""

    spatial_features_2d: Tensor  # (B, C, Y, X)


def conv_block(in_channels: int, out_channels: int, stride: int, repeats: int) -> nn.Sequential:
    """A 3 x 3 convolution with a stride and ``repeats`` without, each with norm and ReLU."""
    # Checkpoints count a padding layer in front; the first convolution pads by itself, which saves a copy of the map.
    layers: list[nn.Module] = [nn.Identity()]
    for i in range(repeats + 1):
        width, step = (in_channels, stride) if i == 0 else (out_channels, 1)
        layers += [nn.Conv2d(width, out_channels, 3, stride=step, padding=1, bias=False), *norm_act(out_channels)]
    return nn.Sequential(*layers)


def resample(in_channels: int, out_channels: int, stride: float, conv_for_no_stride: bool = False) -> nn.Sequential:
    """Enlarge a map ``stride`` times, or reduce it ``1 / stride`` times."""
    if stride > 1 or (stride == 1 and not conv_for_no_stride):
        size = int(stride)
        layer: nn.Module = nn.ConvTranspose2d(in_channels, out_channels, size, stride=size, bias=False)
    else:
        size = round(1 / stride)
        layer = nn.Conv2d(in_channels, out_channels, size, stride=size, bias=False)
    return nn.Sequential(layer, *norm_act(out_channels))


def norm_act(channels: int) -> list[nn.Module]:
    """Batch norm and ReLU."""
    return [_norm(channels), nn.ReLU(inplace=True)]


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut (He et al., "Deep Residual Learning for Image Recognition", sec. 3.3).

    ``project`` sends the shortcut through a 1 x 1 convolution, as a stride or another number of channels needs.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, project: bool = False):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = _norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = _norm(out_channels)
        self.downsample_layer = None
        if project:
            shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
            self.downsample_layer = nn.Sequential(shortcut, _norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:  # (B, C, Y, X) -> (B, C', Y / stride, X / stride)
        inner = F.relu(self.bn1(self.conv1(x)), inplace=True)
        shortcut = x if self.downsample_layer is None else self.downsample_layer(x)
        return F.relu(self.bn2(self.conv2(inner)) + shortcut, inplace=True)
