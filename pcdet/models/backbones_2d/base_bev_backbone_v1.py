"""The neck over two dense levels of a pillar backbone (Shi et al., "PillarNet", sec. 3.2)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.backbones_2d.blocks import BevBackboneFeatures, conv_block, resample
from pcdet.models.registry import BACKBONES_2D
from pcdet.structures.dataset_info import DatasetInfo

LEVELS = ("x_conv4", "x_conv5")


@BACKBONES_2D.register
class BaseBEVBackboneV1(nn.Module):
    """Concatenates a level and the convolved next one, and convolves the result.

    Block 1, with ``layer_nums[1]`` convolutions after a first one, works on x_conv5; deblock ``i`` enlarges level ``i``
    ``upsample_strides[i]`` times to ``num_upsample_filters[i]`` channels; block 0 works on the concatenation. The level
    that enters block ``i`` has ``num_filters[i]`` channels.

    ``total_stride`` is that of x_conv5 and ``out_stride`` that of the output, both relative to x_conv4. Raises
    ``ValueError`` for lists that do not fit together or to the levels.
    """

    ignored_keys = ("LAYER_STRIDES",)  # no convolution here has a stride

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        layer_nums: Sequence[int],
        num_filters: Sequence[int],
        upsample_strides: Sequence[float],
        num_upsample_filters: Sequence[int],
    ):
        super().__init__()
        _require_pairs(
            LAYER_NUMS=layer_nums,
            NUM_FILTERS=num_filters,
            UPSAMPLE_STRIDES=upsample_strides,
            NUM_UPSAMPLE_FILTERS=num_upsample_filters,
        )
        width = sum(num_upsample_filters)
        _require_widths(num_filters, [channels[level] for level in LEVELS], width)
        self.total_stride = 2
        self.out_stride = 1 / upsample_strides[0]
        if abs(2 / upsample_strides[1] - self.out_stride) > 1e-6:
            raise ValueError(
                f"BaseBEVBackboneV1: with UPSAMPLE_STRIDES {list(upsample_strides)} the levels cannot be concatenated; "
                "x_conv5 is half as fine as x_conv4, so the second stride must be twice the first"
            )
        self.blocks = nn.ModuleList(
            conv_block(size, size, 1, count) for size, count in zip(num_filters, layer_nums, strict=True)
        )
        self.deblocks = nn.ModuleList(
            resample(*sizes) for sizes in zip(num_filters, num_upsample_filters, upsample_strides, strict=True)
        )
        self.out_channels = {"spatial_features_2d": width}

    def forward(
        self,
        multi_scale_2d_features: dict[str, SparseConvTensor | Tensor],  # dense x_conv4 (B, C, Y, X), x_conv5 half
    ) -> BevBackboneFeatures:
        fine, coarse = (multi_scale_2d_features[level] for level in LEVELS)
        scales = [self.deblocks[0](fine), self.deblocks[1](self.blocks[1](coarse))]  # (B, C', Y, X) each
        return BevBackboneFeatures(self.blocks[0](torch.cat(scales, dim=1)))


def _require_pairs(**lists: Sequence[float]) -> None:
    wrong = {name: len(values) for name, values in lists.items() if len(values) != len(LEVELS)}
    if wrong:
        raise ValueError(f"BaseBEVBackboneV1 takes one entry for x_conv4 and one for x_conv5; there are {wrong}")


def _require_widths(num_filters: Sequence[int], levels: Sequence[int], concatenated: int) -> None:
    if list(num_filters) != list(levels):
        raise ValueError(
            f"BaseBEVBackboneV1: NUM_FILTERS is {list(num_filters)}, but x_conv4 and x_conv5 of the backbone before it "
            f"have {list(levels)} channels"
        )
    if concatenated != num_filters[0]:
        raise ValueError(
            f"BaseBEVBackboneV1: NUM_UPSAMPLE_FILTERS sum up to {concatenated} channels, but the block after them "
            f"takes NUM_FILTERS[0] = {num_filters[0]}"
        )
