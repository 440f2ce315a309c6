"""MeanVFE, the sparse voxel backbones and HeightCompression: values by hand, names, and invariances."""

import json

import pytest
import torch

from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.backbones_3d.voxel_backbone import VoxelBackBone8x
from pcdet.models.backbones_3d.voxel_res_backbone import VoxelResBackBone8x
from pcdet.models.map_to_bev.height_compression import HeightCompression
from pcdet.models.registry import BACKBONES_3D, MAPS_TO_BEV, VFES
from pcdet.models.vfe.mean_vfe import MeanVFE
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(
    class_names=("Car",),
    point_features=("x", "y", "z", "intensity"),
    point_cloud_range=(0.0, -0.8, -3.0, 1.6, 0.8, 1.0),
    voxel_size=(0.05, 0.05, 0.1),
    grid_size=(32, 32, 40),
)


both = pytest.mark.parametrize("kind", [VoxelBackBone8x, VoxelResBackBone8x])


def backbone(kind=VoxelBackBone8x, **options) -> VoxelBackBone8x | VoxelResBackBone8x:
    torch.manual_seed(0)
    return kind(INFO, {"voxel_features": 4}, **options)


def voxels(count: int, batch_size: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    grid = (batch_size, 40, 32, 32)
    cells = torch.randperm(torch.Size(grid).numel(), generator=generator)[:count]
    coords = torch.stack(torch.unravel_index(cells, grid), dim=1).int()
    return torch.randn(count, 4, generator=generator), coords


def test_all_are_registered():
    assert BACKBONES_3D["VoxelResBackBone8x"] is VoxelResBackBone8x
    assert VFES["MeanVFE"] is MeanVFE
    assert BACKBONES_3D["VoxelBackBone8x"] is VoxelBackBone8x
    assert MAPS_TO_BEV["HeightCompression"] is HeightCompression


def test_mean_vfe_divides_by_the_points_and_not_by_the_slots():
    points = torch.tensor([[[1.0, 2, 3, 4], [3, 4, 5, 6], [0, 0, 0, 0]], [[5, 6, 7, 8], [0, 0, 0, 0], [0, 0, 0, 0]]])
    vfe = MeanVFE(INFO, {})
    got = vfe(points, torch.tensor([2, 1], dtype=torch.int32)).voxel_features
    assert got.tolist() == [[2.0, 3, 4, 5], [5, 6, 7, 8]]
    assert vfe.out_channels == {"voxel_features": 4}
    assert vfe(points[:0], torch.zeros(0).int()).voxel_features.shape == (0, 4)


@both
def test_the_levels_are_halved(kind):
    features, coords = voxels(300)
    out = backbone(kind).eval()(features, coords, 2)
    shapes = {name: x.spatial_shape for name, x in out.multi_scale_3d_features.items()}
    assert shapes == {"x_conv1": (41, 32, 32), "x_conv2": (21, 16, 16), "x_conv3": (11, 8, 8), "x_conv4": (5, 4, 4)}
    assert out.encoded_spconv_tensor.spatial_shape == (2, 4, 4)
    assert out.multi_scale_3d_strides == {"x_conv1": 1, "x_conv2": 2, "x_conv3": 4, "x_conv4": 8}
    assert torch.equal(out.multi_scale_3d_features["x_conv1"].indices, coords)


@both
def test_the_channels_are_declared(kind):
    net = backbone(kind)
    features, coords = voxels(50)
    out = net.eval()(features, coords, 2)
    got = {name: x.features.shape[1] for name, x in out.multi_scale_3d_features.items()}
    assert net.out_channels == got | {"encoded_spconv_tensor": out.encoded_spconv_tensor.features.shape[1]}


def test_parameter_names_and_shapes_are_those_of_published_checkpoints(shared):
    facts = json.loads((shared / "facts" / "openpcdet_state_dicts_kitti.json").read_text())
    entries = facts["state_dicts"]["kitti_models/second.yaml"]
    prefix = "backbone_3d."
    expected = {name.removeprefix(prefix): shape for name, shape in entries.items() if name.startswith(prefix)}
    assert {name: list(t.shape) for name, t in backbone().state_dict().items()} == expected


def test_names_and_shapes_of_the_residual_one_are_those_recorded(shared):
    record = json.loads((shared / "oracles/openpcdet_models/centerpoint_kitti.A.json").read_text())
    prefix = "backbone_3d."
    entries = {name: shape for name, (shape, _) in record["weights"].items() if name.startswith(prefix)}
    state = backbone(VoxelResBackBone8x).state_dict()
    assert {prefix + name: list(t.shape) for name, t in state.items()} == entries


@pytest.mark.parametrize("last_pad, depth", [(0, 2), (1, 3)])
def test_last_pad_adds_cells_along_z(last_pad, depth):
    features, coords = voxels(50)
    out = backbone(last_pad=last_pad).eval()(features, coords, 2)
    assert out.encoded_spconv_tensor.spatial_shape[0] == depth


def test_use_bias_gives_every_convolution_one():
    assert "conv_input.0.bias" in backbone(use_bias=True).state_dict()
    assert "conv_input.0.bias" not in backbone(use_bias=None).state_dict()


@pytest.mark.parametrize("use_bias, expected", [(None, True), (True, True), (False, False)])
def test_use_bias_of_the_residual_one_is_about_its_blocks(use_bias, expected):
    state = backbone(VoxelResBackBone8x, use_bias=use_bias).state_dict()
    assert ("conv2.1.conv2.bias" in state) == expected
    assert "conv_input.0.bias" not in state and "conv2.0.0.bias" not in state


def test_a_residual_block_by_hand():
    """One site: a submanifold convolution is the product with its central weights."""
    net = backbone(VoxelResBackBone8x).eval()
    block = net.conv1[0]
    x = SparseConvTensor(torch.linspace(-1, 1, 16).view(1, 16), torch.tensor([[0, 5, 5, 5]]), net.sparse_shape, 1)
    scale = (1 + 1e-3) ** -0.5  # of a batch norm that has seen nothing
    inner = (x.features @ block.conv1.weight[:, 1, 1, 1].T + block.conv1.bias) * scale
    inner = (inner.relu() @ block.conv2.weight[:, 1, 1, 1].T + block.conv2.bias) * scale
    torch.testing.assert_close(block(x).features, (inner + x.features).relu())


@both
def test_every_parameter_learns(kind):
    net = backbone(kind)
    features, coords = voxels(400)
    net(features, coords, 2).encoded_spconv_tensor.features.square().sum().backward()
    for name, parameter in net.named_parameters():
        assert torch.isfinite(parameter.grad).all() and parameter.grad.any(), name


@both
def test_an_empty_scene_beside_a_full_one_changes_nothing(kind):
    net = backbone(kind).eval()
    features, coords = voxels(100, batch_size=1)
    alone = net(features, coords, 1).encoded_spconv_tensor.dense()
    beside = net(features, coords, 2).encoded_spconv_tensor.dense()
    assert torch.equal(beside[:1], alone) and not beside[1].any()


@both
def test_no_voxels_at_all_is_a_legal_batch(kind):
    net = backbone(kind)
    features, coords = voxels(0)
    out = net(features, coords, 2)
    bev = HeightCompression(INFO, net.out_channels, num_bev_features=256)(
        out.encoded_spconv_tensor, out.encoded_spconv_tensor_stride
    )
    assert bev.spatial_features.shape == (2, 256, 4, 4)
    bev.spatial_features.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())


def test_height_compression_stacks_z_inside_each_channel():
    x = SparseConvTensor(torch.tensor([[1.0, 2.0]]), torch.tensor([[0, 1, 0, 2]]), (2, 1, 3), 1)
    out = HeightCompression(INFO, {"encoded_spconv_tensor": 2}, num_bev_features=4)(x, 8)
    assert out.spatial_features[0, :, 0, 2].tolist() == [0.0, 1.0, 0.0, 2.0]
    assert out.spatial_features_stride == 8


def test_height_compression_names_a_wrong_channel_count():
    with pytest.raises(ValueError, match="NUM_BEV_FEATURES is 100"):
        HeightCompression(INFO, {"encoded_spconv_tensor": 64}, num_bev_features=100)
    x = SparseConvTensor(torch.zeros(1, 2), torch.zeros(1, 4).int(), (3, 1, 3), 1)
    with pytest.raises(ValueError, match="3 cells along z, which makes 6"):
        HeightCompression(INFO, {"encoded_spconv_tensor": 2}, num_bev_features=4)(x, 8)
