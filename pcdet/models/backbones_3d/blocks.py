"""Blocks of sparse and dense convolutions that several backbones share, under the names of OpenPCDet's parameters."""

import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.row_norm import RowNorm
from pcdet.layers.sparse import SparseConvTensor, SparseModule, SparseSequential, SubMConv2d, SubMConv3d

NORM = {"eps": 1e-3, "momentum": 0.01}


def sparse_block(
    kind: type[SparseModule], in_channels: int, out_channels: int, *, kernel_size=3, bias: bool = False, **options
) -> SparseSequential:
    """Convolution of a kind, norm, ReLU."""
    conv = kind(in_channels, out_channels, kernel_size, bias=bias, **options)
    return SparseSequential(conv, RowNorm(out_channels, **NORM), nn.ReLU())


def dense_block(in_channels: int, out_channels: int, *, stride: int = 1) -> nn.Sequential:
    """3 x 3 convolution without bias, norm, ReLU."""
    conv = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels, **NORM), nn.ReLU())


class SparseBasicBlock(SparseModule):
    """Two submanifold convolutions and a shortcut (He et al., "Deep Residual Learning", sec. 3.3), in 2-D or 3-D.

    The number of channels stays. Both convolutions have a bias unless told otherwise, as in the published models.
    """

    def __init__(self, channels: int, *, ndim: int = 3, bias: bool = True, indice_key: str | None = None):
        super().__init__()
        kind = {2: SubMConv2d, 3: SubMConv3d}[ndim]
        self.conv1 = kind(channels, channels, 3, bias=bias, indice_key=indice_key)
        self.bn1 = RowNorm(channels, **NORM)
        self.conv2 = kind(channels, channels, 3, bias=bias, indice_key=indice_key)
        self.bn2 = RowNorm(channels, **NORM)

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        inner = self.conv1(x)
        inner = self.conv2(inner.replace_feature(F.relu(self.bn1(inner.features))))
        return inner.replace_feature(F.relu(self.bn2(inner.features) + x.features))


class DenseBasicBlock(nn.Module):
    """The same block with dense 3 x 3 convolutions."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels, **NORM)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels, **NORM)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, Y, X) -> the same
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(inner)) + x)
