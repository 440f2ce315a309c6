"""Residual convolutions over the bird's-eye view with several scales (as in DSVT, Wang et al., sec. 4.1)."""

from torch import nn

from pcdet.models.backbones_2d.base_bev_backbone import BaseBEVBackbone
from pcdet.models.backbones_2d.blocks import ResidualBlock
from pcdet.models.registry import BACKBONES_2D


@BACKBONES_2D.register
class BaseBEVResBackbone(BaseBEVBackbone):
    """Like :class:`BaseBEVBackbone` with a residual block in place of every convolution.

    The first residual block of a scale has the stride and a projected shortcut.
    """

    def make_block(self, in_channels: int, out_channels: int, stride: int, repeats: int) -> nn.Sequential:
        """The residual blocks of one scale."""
        first = ResidualBlock(in_channels, out_channels, stride, project=True)
        return nn.Sequential(first, *(ResidualBlock(out_channels, out_channels) for _ in range(repeats)))
