"""BaseBEVBackboneV1 and BaseBEVResBackbone."""

import pytest
import torch

from pcdet.models.backbones_2d.base_bev_backbone_v1 import BaseBEVBackboneV1
from pcdet.models.backbones_2d.base_bev_res_backbone import BaseBEVResBackbone
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car",), ("x", "y", "z"))


def neck(**options):
    settings = {"layer_nums": [0, 1], "num_filters": [5, 4], "upsample_strides": [1, 2], "num_upsample_filters": [2, 3]}
    return BaseBEVBackboneV1(INFO, {"x_conv4": 5, "x_conv5": 4}, **(settings | options))


def test_two_levels_meet_at_the_finer_one():
    model = neck()
    levels = {"x_conv4": torch.randn(2, 5, 8, 6), "x_conv5": torch.randn(2, 4, 4, 3)}
    x = model(levels).spatial_features_2d
    assert x.shape == (2, 5, 8, 6) and model.out_channels == {"spatial_features_2d": 5}
    assert (model.total_stride, model.out_stride) == (2, 1)
    x.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert (neck(upsample_strides=[0.5, 1]).total_stride, neck(upsample_strides=[0.5, 1]).out_stride) == (2, 2)


def test_the_order_of_its_blocks_by_hand():
    """All weights 1, no norm: block 1 sums 3 x 3 cells of the coarse level, block 0 those of the concatenation."""
    model = neck(layer_nums=[0, 0]).eval()
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.zeros_(module.bias)
            module.eps = 0.0
    x = model({"x_conv4": torch.ones(1, 5, 2, 2), "x_conv5": torch.ones(1, 4, 1, 1)}).spatial_features_2d
    coarse = 4 * 4.0  # block 1 sees one cell of 4 channels; the deblock sums its 4 channels of value 4
    assert x.unique().tolist() == [4 * (2 * 5 + 3 * coarse)]  # block 0 sees all 4 cells of the fine level


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layer_nums": [1]}, r"there are \{'LAYER_NUMS': 1\}"),
        ({"num_filters": [5, 5]}, r"NUM_FILTERS is \[5, 5\], but x_conv4 and x_conv5 .* have \[5, 4\]"),
        ({"num_upsample_filters": [3, 3]}, "sum up to 6 channels"),
        ({"upsample_strides": [1, 1]}, "the second stride must be twice the first"),
    ],
)
def test_lists_that_do_not_fit_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        neck(**options)


def residual(**options):
    settings = {
        "layer_nums": [1, 2],
        "layer_strides": [1, 2],
        "num_filters": [4, 6],
        "upsample_strides": [1, 2],
        "num_upsample_filters": [3, 5],
    }
    return BaseBEVResBackbone(INFO, {"spatial_features": 2}, **(settings | options))


def test_residual_blocks_replace_the_convolutions():
    model = residual()
    x = model(torch.randn(2, 2, 8, 8)).spatial_features_2d
    assert x.shape == (2, 8, 8, 8)
    assert [len(block) for block in model.blocks] == [2, 3]
    x.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_residual_parameters_are_named_as_in_checkpoints():
    names = residual().state_dict()
    assert names["blocks.1.0.downsample_layer.0.weight"].shape == (6, 4, 1, 1)
    assert names["blocks.1.0.conv1.weight"].shape == (6, 4, 3, 3)
    assert "blocks.1.2.bn2.running_var" in names and "blocks.1.1.downsample_layer.0.weight" not in names


def test_a_residual_block_adds_its_projected_input():
    block = residual().blocks[1][0].eval()
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.randn(1, 4, 4, 4)
    assert torch.equal(block(x), block.downsample_layer(x).relu())
    assert block(x).shape == (1, 6, 2, 2)
