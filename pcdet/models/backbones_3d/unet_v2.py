"""A sparse encoder and decoder that gives every voxel a feature (Shi et al., "From Points to Parts", sec. 3.1)."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.layers.sparse import SparseConvTensor, SparseInverseConv3d, SparseModule, SparseSequential, SubMConv3d
from pcdet.models.backbones_3d.blocks import SparseBasicBlock, sparse_block
from pcdet.models.backbones_3d.voxel_backbone import VoxelBackbone, plain_blocks
from pcdet.models.registry import BACKBONES_3D
from pcdet.models.voxel_centres import voxel_centres
from pcdet.structures.dataset_info import DatasetInfo


class UNetFeatures(NamedTuple):
    """What the backbone adds to the batch."""

    encoded_spconv_tensor: SparseConvTensor | None  # features (M, 128), the last and flattest grid
    encoded_spconv_tensor_stride: int | None  # of that grid along y and x
    point_features: Tensor  # (V, 16)
    point_coords: Tensor  # (V, 4) scene, and the centre of the voxel: x, y, z


@BACKBONES_3D.register
class UNetV2(VoxelBackbone):
    """The encoder of :class:`VoxelBackBone8x`, and a decoder from its coarsest level back to the voxels.

    At each level the decoder joins what comes from below with the encoder's features of the same sites and spreads
    the result over the sites of the next finer level. Points are the voxels, in their order.
    ``return_encoded_tensor`` False leaves out the flat grid for the bird's-eye view.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        return_encoded_tensor: bool = True,
        last_pad: int = 0,
    ):
        widths, blocks = (16, 32, 64, 64), partial(plain_blocks, bias=False)
        super().__init__(info, channels, widths, blocks, False, last_pad, encode=return_encoded_tensor)
        self.info = info
        for level in (4, 3, 2, 1):
            width, key = widths[level - 1], f"subm{level}"
            self.add_module(f"conv_up_t{level}", SparseBasicBlock(width, bias=False, indice_key=key))
            self.add_module(f"conv_up_m{level}", sparse_block(SubMConv3d, 2 * width, width, indice_key=key))
            if level > 1:
                up = sparse_block(SparseInverseConv3d, width, widths[level - 2], indice_key=f"spconv{level}")
                self.add_module(f"inv_conv{level}", up)
        self.conv5 = SparseSequential(sparse_block(SubMConv3d, widths[0], widths[0], indice_key="subm1"))
        self.out_channels = {"point_features": widths[0]}
        if return_encoded_tensor:
            self.out_channels["encoded_spconv_tensor"] = 128

    def forward(
        self,
        voxel_features: Tensor,  # (V, C)
        voxel_coords: Tensor,  # (V, 4) scene, z, y, x
        batch_size: int,
    ) -> UNetFeatures:
        levels = self.levels(voxel_features, voxel_coords, batch_size)
        encoded = None if self.conv_out is None else self.conv_out(levels[3])  # (M, 128)
        x = levels[3]
        x = merge_level(levels[3], x, self.conv_up_t4, self.conv_up_m4, self.inv_conv4)  # (V3, 64)
        x = merge_level(levels[2], x, self.conv_up_t3, self.conv_up_m3, self.inv_conv3)  # (V2, 32)
        x = merge_level(levels[1], x, self.conv_up_t2, self.conv_up_m2, self.inv_conv2)  # (V, 16)
        x = merge_level(levels[0], x, self.conv_up_t1, self.conv_up_m1, self.conv5)  # (V, 16)
        coords = torch.cat([x.indices[:, :1].float(), voxel_centres(x.indices[:, 1:], self.info)], dim=1)  # (V, 4)
        return UNetFeatures(encoded, None if encoded is None else 8, x.features, coords)


def merge_level(
    lateral: SparseConvTensor,  # features (V, C) of the encoder
    below: SparseConvTensor,  # features (V, C) of the decoder, at the same sites
    refine: SparseModule,
    merge: SparseModule,
    spread: SparseModule,
) -> SparseConvTensor:
    """One level of the decoder: the merged features, plus the joined ones summed in pairs, spread to the next level."""
    joined = torch.cat([below.features, refine(lateral).features], dim=1)  # (V, 2 C)
    merged = merge(lateral.replace_feature(joined)).features  # (V, C)
    pairs = joined.view(len(joined), joined.shape[1] // 2, 2).sum(dim=2)  # (V, C)
    return spread(lateral.replace_feature(merged + pairs))
