"""Sparse 3-D convolution over voxels (Yan et al., "SECOND: Sparsely Embedded Convolutional Detection", sec. 3.1.2)."""

from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from pcdet.layers.sparse import SparseConv3d, SparseConvTensor, SparseModule, SparseSequential, SubMConv3d
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo


class VoxelBackboneFeatures(NamedTuple):
    """What a sparse voxel backbone adds to the batch."""

    encoded_spconv_tensor: SparseConvTensor  # features (M, 128), the last and flattest grid
    encoded_spconv_tensor_stride: int  # of the last grid along y and x
    multi_scale_3d_features: dict[str, SparseConvTensor]  # x_conv1 ... x_conv4, finest first
    multi_scale_3d_strides: dict[str, int]  # of each of them


@BACKBONES_3D.register
class VoxelBackBone8x(nn.Module):
    """Four levels of submanifold convolutions, each level half as fine as the one before.

    The grid has one more cell along z than the voxelizer's, so that halving it three times fits. Rows of level 1 are
    in the order of the voxels, those of all others sorted by (scene, z, y, x). ``last_pad`` pads z before the last
    convolution, which halves only z; ``use_bias`` gives every convolution a bias.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        last_pad: int = 0,
        use_bias: bool | None = None,
    ):
        super().__init__()
        x, y, z = info.grid_size
        self.sparse_shape = (z + 1, y, x)
        subm = partial(_block, SubMConv3d, bias=bool(use_bias))
        down = partial(_block, SparseConv3d, bias=bool(use_bias), stride=2)

        self.conv_input = subm(channels["voxel_features"], 16, indice_key="subm1")
        self.conv1 = SparseSequential(subm(16, 16, indice_key="subm1"))
        self.conv2 = SparseSequential(
            down(16, 32, padding=1, indice_key="spconv2"),
            subm(32, 32, indice_key="subm2"),
            subm(32, 32, indice_key="subm2"),
        )
        self.conv3 = SparseSequential(
            down(32, 64, padding=1, indice_key="spconv3"),
            subm(64, 64, indice_key="subm3"),
            subm(64, 64, indice_key="subm3"),
        )
        self.conv4 = SparseSequential(
            down(64, 64, padding=(0, 1, 1), indice_key="spconv4"),
            subm(64, 64, indice_key="subm4"),
            subm(64, 64, indice_key="subm4"),
        )
        flatten = partial(_block, SparseConv3d, 64, 128, kernel_size=(3, 1, 1), stride=(2, 1, 1))
        self.conv_out = flatten(padding=(last_pad, 0, 0), bias=bool(use_bias), indice_key="spconv_down2")
        self.out_channels = {"encoded_spconv_tensor": 128, "x_conv1": 16, "x_conv2": 32, "x_conv3": 64, "x_conv4": 64}

    def forward(
        self,
        voxel_features: Tensor,  # (V, C)
        voxel_coords: Tensor,  # (V, 4) scene, z, y, x
        batch_size: int,
    ) -> VoxelBackboneFeatures:
        x = SparseConvTensor(voxel_features, voxel_coords, self.sparse_shape, batch_size)
        x_conv1 = self.conv1(self.conv_input(x))  # (V, 16)
        x_conv2 = self.conv2(x_conv1)  # (V2, 32)
        x_conv3 = self.conv3(x_conv2)  # (V3, 64)
        x_conv4 = self.conv4(x_conv3)  # (V4, 64)
        return VoxelBackboneFeatures(
            encoded_spconv_tensor=self.conv_out(x_conv4),  # (M, 128)
            encoded_spconv_tensor_stride=8,
            multi_scale_3d_features={"x_conv1": x_conv1, "x_conv2": x_conv2, "x_conv3": x_conv3, "x_conv4": x_conv4},
            multi_scale_3d_strides={"x_conv1": 1, "x_conv2": 2, "x_conv3": 4, "x_conv4": 8},
        )


def _block(
    kind: type[SparseModule], in_channels: int, out_channels: int, *, kernel_size=3, **options
) -> SparseSequential:
    """Convolution, batch norm, ReLU."""
    return SparseSequential(
        kind(in_channels, out_channels, kernel_size, **options),
        nn.BatchNorm1d(out_channels, eps=1e-3, momentum=0.01),
        nn.ReLU(),
    )
