"""Convolutions over the bird's-eye view with several scales (PointPillars, sec. 2.2; SECOND, sec. 3.1.3)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.models.backbones_2d.blocks import BevBackboneFeatures, conv_block, resample
from pcdet.models.registry import BACKBONES_2D
from pcdet.structures.dataset_info import DatasetInfo


@BACKBONES_2D.register
class BaseBEVBackbone(nn.Module):
    """Blocks of 3 x 3 convolutions, each coarser than the one before; all brought to one size and concatenated.

    Block ``i`` has ``layer_nums[i]`` convolutions after a first one with stride ``layer_strides[i]``, all with
    ``num_filters[i]`` channels. Its output is enlarged ``upsample_strides[i]`` times (below 1: reduced) to
    ``num_upsample_filters[i]`` channels. One more upsample stride than blocks enlarges the concatenation.
    Without upsampling the blocks' outputs are concatenated as they are. ``use_conv_for_no_stride`` takes a plain
    instead of a transposed 1 x 1 convolution where the stride is 1.

    ``total_stride`` is that of the coarsest block and ``out_stride`` that of the output, both relative to the input.
    Raises ``ValueError`` for lists that do not fit together.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        layer_nums: Sequence[int],
        layer_strides: Sequence[int],
        num_filters: Sequence[int],
        upsample_strides: Sequence[float] = (),
        num_upsample_filters: Sequence[int] = (),
        use_conv_for_no_stride: bool = False,
    ):
        super().__init__()
        _require_lengths(layer_nums, layer_strides, num_filters, upsample_strides, num_upsample_filters)
        self.total_stride = math.prod(layer_strides)
        self.out_stride = _out_stride(layer_strides, upsample_strides)

        widths = [channels["spatial_features"], *num_filters]
        self.blocks = nn.ModuleList(
            self.make_block(widths[i], widths[i + 1], layer_strides[i], layer_nums[i]) for i in range(len(layer_nums))
        )
        # The lists are equally long, but for the stride that enlarges the concatenation.
        self.deblocks = nn.ModuleList(
            resample(narrow, wide, stride, use_conv_for_no_stride)
            for narrow, wide, stride in zip(num_filters, num_upsample_filters, upsample_strides, strict=False)
        )
        width = sum(num_upsample_filters or num_filters)
        if len(upsample_strides) > len(layer_nums):
            self.deblocks.append(resample(width, width, upsample_strides[-1], use_conv_for_no_stride))
        self.out_channels = {"spatial_features_2d": width}

    def make_block(self, in_channels: int, out_channels: int, stride: int, repeats: int) -> nn.Sequential:
        """The layers of one block."""
        return conv_block(in_channels, out_channels, stride, repeats)

    def forward(
        self,
        spatial_features: Tensor,  # (B, C, Y, X)
    ) -> BevBackboneFeatures:
        x = spatial_features
        scales = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            scales.append(self.deblocks[i](x) if len(self.deblocks) else x)
        x = torch.cat(scales, dim=1) if len(scales) > 1 else scales[0]
        if len(self.deblocks) > len(self.blocks):
            x = self.deblocks[-1](x)
        return BevBackboneFeatures(x)


def _require_lengths(
    layer_nums: Sequence[int],
    layer_strides: Sequence[int],
    num_filters: Sequence[int],
    upsample_strides: Sequence[float],
    num_upsample_filters: Sequence[int],
) -> None:
    """The lists of a backbone describe the same blocks."""
    blocks = len(layer_nums)
    if not blocks or len(layer_strides) != blocks or len(num_filters) != blocks:
        raise ValueError(
            f"BaseBEVBackbone: LAYER_NUMS, LAYER_STRIDES and NUM_FILTERS need one entry a block, at least one; they "
            f"have {blocks}, {len(layer_strides)} and {len(num_filters)}"
        )
    if len(num_upsample_filters) not in (0, blocks):
        raise ValueError(
            f"BaseBEVBackbone: NUM_UPSAMPLE_FILTERS has {len(num_upsample_filters)} entries for {blocks} blocks"
        )
    if len(upsample_strides) not in (len(num_upsample_filters), len(num_upsample_filters) + 1):
        raise ValueError(
            f"BaseBEVBackbone: UPSAMPLE_STRIDES has {len(upsample_strides)} entries, NUM_UPSAMPLE_FILTERS "
            f"{len(num_upsample_filters)}; it may have as many or one more"
        )


def _out_stride(layer_strides: Sequence[int], upsample_strides: Sequence[float]) -> float:
    """Stride of the concatenated map, which every block must be brought to."""
    coarse = [math.prod(layer_strides[: i + 1]) for i in range(len(layer_strides))]
    enlarge = upsample_strides[: len(coarse)] if len(upsample_strides) >= len(coarse) else [1] * len(coarse)
    strides = [stride / up for stride, up in zip(coarse, enlarge, strict=True)]
    if any(abs(stride - strides[0]) > 1e-6 for stride in strides):
        raise ValueError(
            f"BaseBEVBackbone: with LAYER_STRIDES {list(layer_strides)} and UPSAMPLE_STRIDES {list(upsample_strides)} "
            f"the blocks end at the strides {strides}, which cannot be concatenated; all must be equal"
        )
    return strides[0] / (upsample_strides[-1] if len(upsample_strides) > len(coarse) else 1)
