import pytest
import torch

from pcdet.models.backbones_2d.base_bev_backbone import BaseBEVBackbone
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car",), ("x", "y", "z"))


def backbone(**options):
    settings = {
        "layer_nums": [1, 2],
        "layer_strides": [2, 2],
        "num_filters": [4, 6],
        "upsample_strides": [1, 2],
        "num_upsample_filters": [3, 5],
    }
    return BaseBEVBackbone(INFO, {"spatial_features": 2}, **(settings | options))


@pytest.mark.parametrize(
    "options, channels, cells, total, out",
    [
        ({}, 8, 8, 4, 2),
        ({"layer_strides": [1, 2]}, 8, 16, 2, 1),
        ({"upsample_strides": [0.5, 1]}, 8, 4, 4, 4),
        ({"upsample_strides": [1, 2, 2]}, 8, 16, 4, 1),
        ({"layer_strides": [2, 1], "upsample_strides": [], "num_upsample_filters": []}, 10, 8, 2, 2),
        ({"use_conv_for_no_stride": True}, 8, 8, 4, 2),
    ],
)
def test_shapes_and_strides(options, channels, cells, total, out):
    model = backbone(**options)
    x = model(torch.randn(2, 2, 16, 16)).spatial_features_2d
    assert x.shape == (2, channels, cells, cells)
    assert model.out_channels == {"spatial_features_2d": channels}
    assert (model.total_stride, model.out_stride) == (total, out)
    x.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_first_block_by_hand():
    """With all weights 1 a cell of a stride-2 convolution sums the 3 x 3 cells around it; the border sees zeros."""
    model = backbone(layer_nums=[0], layer_strides=[2], num_filters=[1], upsample_strides=[1], num_upsample_filters=[1])
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    for norm in (model.blocks[0][2], model.deblocks[0][1]):
        torch.nn.init.zeros_(norm.bias)
        norm.eps = 0.0
    x = model.eval()(torch.ones(1, 2, 4, 4)).spatial_features_2d
    assert x[0, 0].tolist() == [[8.0, 12.0], [12.0, 18.0]]


def test_parameters_are_numbered_as_in_checkpoints():
    names = set(backbone().state_dict())
    for name in ("blocks.0.1.weight", "blocks.0.2.running_var", "blocks.1.7.weight", "deblocks.1.0.weight"):
        assert name in names
    assert backbone().deblocks[1][0].weight.shape == (6, 5, 2, 2)  # transposed
    assert backbone(use_conv_for_no_stride=True).deblocks[0][0].weight.shape == (3, 4, 1, 1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layer_nums": []}, "at least one"),
        ({"layer_strides": [2]}, "they have 2, 1 and 2"),
        ({"num_upsample_filters": [3]}, "NUM_UPSAMPLE_FILTERS has 1 entries for 2 blocks"),
        ({"upsample_strides": [1, 2, 1, 1]}, "it may have as many or one more"),
        ({"upsample_strides": [1, 4]}, r"strides \[2.0, 1.0\], which cannot be concatenated"),
        ({"upsample_strides": [], "num_upsample_filters": []}, "cannot be concatenated"),
    ],
)
def test_lists_that_do_not_fit_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        backbone(**options)
