"""Sparse 2-D convolution over pillars (Shi et al., "PillarNet: Real-Time and High-Performance Pillar-based 3D Object
Detection", sec. 3.2).
"""

from typing import NamedTuple

from torch import Tensor, nn

from pcdet.layers.sparse import SparseConv2d, SparseConvTensor, SparseModule, SparseSequential, SubMConv2d
from pcdet.models.backbones_3d.blocks import DenseBasicBlock, SparseBasicBlock, dense_block, sparse_block
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo

WIDTHS = (32, 64, 128, 256)  # of the four sparse levels; the dense fifth keeps the last


class PillarBackboneFeatures(NamedTuple):
    """What a pillar backbone adds to the batch."""

    # x_conv1 ... x_conv3 sparse; x_conv4 and x_conv5 dense maps (B, 256, Y / 8, X / 8) and (B, 256, Y / 16, X / 16)
    multi_scale_2d_features: dict[str, SparseConvTensor | Tensor]
    multi_scale_2d_strides: dict[str, int]  # of each of them


class PillarBackbone(nn.Module):
    """Four sparse levels and a dense fifth, each level half as fine as the one before.

    A level is a first convolution and two blocks; :meth:`sparse_pair` and :meth:`dense_pair` say which blocks. Rows of
    level 1 are in the order of the pillars, those of levels 2 and 3 sorted by (scene, y, x).
    """

    def __init__(self, info: DatasetInfo, channels: dict[str, int]):
        super().__init__()
        if channels["pillar_features"] != WIDTHS[0]:
            raise ValueError(
                f"{type(self).__name__} takes pillars with {WIDTHS[0]} channels, not {channels['pillar_features']}: "
                f"the last of the VFE's NUM_FILTERS must be {WIDTHS[0]}"
            )
        x, y, _ = info.grid_size
        self.sparse_shape = (y, x)
        self.conv1 = SparseSequential(*self.sparse_pair(WIDTHS[0], 1))
        self.conv2, self.conv3, self.conv4 = (self._level(number) for number in (2, 3, 4))
        self.conv5 = nn.Sequential(dense_block(WIDTHS[-1], WIDTHS[-1], stride=2), *self.dense_pair(WIDTHS[-1]))
        names = [f"x_conv{number}" for number in range(1, 6)]
        self.out_channels = dict(zip(names, (*WIDTHS, WIDTHS[-1]), strict=True))

    def _level(self, number: int) -> SparseSequential:
        before, width = WIDTHS[number - 2 : number]
        down = sparse_block(SparseConv2d, before, width, stride=2, padding=1, indice_key=f"spconv{number}")
        return SparseSequential(down, *self.sparse_pair(width, number))

    def sparse_pair(self, width: int, level: int) -> list[SparseModule]:
        """The two sparse blocks of a level."""
        return [sparse_block(SubMConv2d, width, width, indice_key=f"subm{level}") for _ in range(2)]

    def dense_pair(self, width: int) -> list[nn.Module]:
        """The two dense blocks of the last level."""
        return [dense_block(width, width) for _ in range(2)]

    def forward(
        self,
        pillar_features: Tensor,  # (V, 32)
        pillar_coords: Tensor,  # (V, 3) scene, y, x
        batch_size: int,
    ) -> PillarBackboneFeatures:
        x = SparseConvTensor(pillar_features, pillar_coords, self.sparse_shape, batch_size)
        x_conv1 = self.conv1(x)  # (V, 32)
        x_conv2 = self.conv2(x_conv1)  # (V2, 64)
        x_conv3 = self.conv3(x_conv2)  # (V3, 128)
        x_conv4 = self.conv4(x_conv3).dense()  # (B, 256, Y / 8, X / 8)
        x_conv5 = self.conv5(x_conv4)  # (B, 256, Y / 16, X / 16)
        features = dict(zip(self.out_channels, (x_conv1, x_conv2, x_conv3, x_conv4, x_conv5), strict=True))
        return PillarBackboneFeatures(features, {name: 2**i for i, name in enumerate(features)})


@BACKBONES_3D.register
class PillarBackBone8x(PillarBackbone):
    """Plain convolutions throughout."""


@BACKBONES_3D.register
class PillarRes18BackBone8x(PillarBackbone):
    """Residual blocks after the first convolution of a level (PillarNet-18)."""

    def sparse_pair(self, width: int, level: int) -> list[SparseModule]:
        """The two sparse blocks of a level."""
        return [SparseBasicBlock(width, ndim=2, indice_key=f"res{level}") for _ in range(2)]

    def dense_pair(self, width: int) -> list[nn.Module]:
        """The two dense blocks of the last level."""
        return [DenseBasicBlock(width) for _ in range(2)]
