"""Sparse 3-D convolution over voxels (Yan et al., "SECOND: Sparsely Embedded Convolutional Detection", sec. 3.1.2)."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from pcdet.layers.sparse import SparseConv3d, SparseConvTensor, SparseModule, SparseSequential, SubMConv3d
from pcdet.models.backbones_3d.blocks import sparse_block
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo


class VoxelBackboneFeatures(NamedTuple):
    """What a sparse voxel backbone adds to the batch."""

    encoded_spconv_tensor: SparseConvTensor  # features (M, 128), the last and flattest grid
    encoded_spconv_tensor_stride: int  # of the last grid along y and x
    multi_scale_3d_features: dict[str, SparseConvTensor]  # x_conv1 ... x_conv4, finest first
    multi_scale_3d_strides: dict[str, int]  # of each of them


class VoxelBackbone(nn.Module):
    """Four levels of submanifold convolutions, each level half as fine as the one before.

    The grid has one more cell along z than the voxelizer's, so that halving it three times fits. Rows of level 1 are
    in the order of the voxels, those of all others sorted by (scene, z, y, x). ``widths`` are the levels' channels,
    ``blocks(width, level)`` makes the blocks that keep a level's sites, ``bias`` gives all other convolutions a bias,
    and ``last_pad`` pads z before the last of them, which halves only z and which ``encode`` may leave out.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        widths: tuple[int, int, int, int],
        blocks: Callable[[int, int], list[SparseModule]],
        bias: bool,
        last_pad: int,
        encode: bool = True,
    ):
        super().__init__()
        x, y, z = info.grid_size
        self.sparse_shape = (z + 1, y, x)
        first = widths[0]
        self.conv_input = sparse_block(SubMConv3d, channels["voxel_features"], first, bias=bias, indice_key="subm1")
        self.conv1 = SparseSequential(*blocks(first, 1))

        def level(number: int, padding: int | tuple[int, int, int]) -> SparseSequential:
            before, width = widths[number - 2 : number]
            down = partial(sparse_block, SparseConv3d, before, width, stride=2, indice_key=f"spconv{number}")
            return SparseSequential(down(padding=padding, bias=bias), *blocks(width, number))

        self.conv2 = level(2, padding=1)
        self.conv3 = level(3, padding=1)
        self.conv4 = level(4, padding=(0, 1, 1))
        flatten = partial(sparse_block, SparseConv3d, widths[3], 128, kernel_size=(3, 1, 1), stride=(2, 1, 1))
        options = {"padding": (last_pad, 0, 0), "bias": bias, "indice_key": "spconv_down2"}
        self.conv_out = flatten(**options) if encode else None
        names = ("x_conv1", "x_conv2", "x_conv3", "x_conv4")
        self.out_channels = {"encoded_spconv_tensor": 128, **dict(zip(names, widths, strict=True))}

    def levels(
        self,
        voxel_features: Tensor,  # (V, C)
        voxel_coords: Tensor,  # (V, 4) scene, z, y, x
        batch_size: int,
    ) -> tuple[SparseConvTensor, SparseConvTensor, SparseConvTensor, SparseConvTensor]:
        """The four levels, finest first."""
        x = SparseConvTensor(voxel_features, voxel_coords, self.sparse_shape, batch_size)
        x_conv1 = self.conv1(self.conv_input(x))  # (V, C1)
        x_conv2 = self.conv2(x_conv1)  # (V2, C2)
        x_conv3 = self.conv3(x_conv2)  # (V3, C3)
        return x_conv1, x_conv2, x_conv3, self.conv4(x_conv3)  # (V4, C4)

    def forward(
        self,
        voxel_features: Tensor,  # (V, C)
        voxel_coords: Tensor,  # (V, 4) scene, z, y, x
        batch_size: int,
    ) -> VoxelBackboneFeatures:
        x_conv1, x_conv2, x_conv3, x_conv4 = self.levels(voxel_features, voxel_coords, batch_size)
        return VoxelBackboneFeatures(
            encoded_spconv_tensor=self.conv_out(x_conv4),  # (M, 128)
            encoded_spconv_tensor_stride=8,
            multi_scale_3d_features={"x_conv1": x_conv1, "x_conv2": x_conv2, "x_conv3": x_conv3, "x_conv4": x_conv4},
            multi_scale_3d_strides={"x_conv1": 1, "x_conv2": 2, "x_conv3": 4, "x_conv4": 8},
        )


@BACKBONES_3D.register
class VoxelBackBone8x(VoxelBackbone):
    """Plain convolutions throughout. ``use_bias`` gives every convolution a bias; see :class:`VoxelBackbone`."""

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        last_pad: int = 0,
        use_bias: bool | None = None,
    ):
        bias = bool(use_bias)
        super().__init__(info, channels, (16, 32, 64, 64), partial(plain_blocks, bias=bias), bias, last_pad)


def plain_blocks(width: int, level: int, bias: bool) -> list[SparseModule]:
    """Submanifold convolutions of a level: one at the first, two at all others."""
    same = partial(sparse_block, SubMConv3d, width, width, bias=bias, indice_key=f"subm{level}")
    return [same() for _ in range(1 if level == 1 else 2)]
