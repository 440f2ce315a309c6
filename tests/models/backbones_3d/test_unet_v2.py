import json

import pytest
import torch
from torch import nn

from pcdet.layers.sparse import SparseConvTensor, SparseModule
from pcdet.models.backbones_3d.unet_v2 import UNetV2, merge_level
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(
    class_names=("Car",),
    point_features=("x", "y", "z", "intensity"),
    point_cloud_range=(0.0, -0.8, -3.0, 1.6, 0.8, 1.0),
    voxel_size=(0.05, 0.05, 0.1),
    grid_size=(32, 32, 40),
)


def unet(**options) -> UNetV2:
    torch.manual_seed(0)
    return UNetV2(INFO, {"voxel_features": 4}, **options)


def voxels(count: int, batch_size: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    grid = (batch_size, 40, 32, 32)
    cells = torch.randperm(torch.Size(grid).numel(), generator=draw)[:count]
    coords = torch.stack(torch.unravel_index(cells, grid), dim=1).int()
    return torch.randn(count, 4, generator=draw), coords


class Gain(SparseModule):
    """Multiplies features by a matrix."""

    def __init__(self, matrix: torch.Tensor):
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        return x.replace_feature(x.features @ self.matrix)


def test_a_level_by_hand():
    sites = torch.tensor([[0, 1, 1, 1]])
    lateral = SparseConvTensor(torch.tensor([[1.0, 2.0]]), sites, (3, 3, 3), 1)
    below = lateral.replace_feature(torch.tensor([[5.0, 7.0]]))
    merge = torch.tensor([[1.0, 0], [0, 0], [0, 0], [0, 1]])  # takes the first and the last of the joined channels
    out = merge_level(lateral, below, Gain(10 * torch.eye(2)), Gain(merge), Gain(2 * torch.eye(2)))
    # Joined: 5 7 10 20. Merged: 5 20. Summed in pairs: 12 30.
    assert out.features.tolist() == [[2 * (5 + 12.0), 2 * (20 + 30.0)]]


def test_names_and_shapes_are_those_of_published_checkpoints(shared):
    facts = json.loads((shared / "facts" / "openpcdet_state_dicts_kitti.json").read_text())
    for name, net in (("PartA2", unet()), ("PartA2_free", unet(return_encoded_tensor=False))):
        entries = facts["state_dicts"][f"kitti_models/{name}.yaml"]
        expected = {k.removeprefix("backbone_3d."): v for k, v in entries.items() if k.startswith("backbone_3d.")}
        state = {k: list(v.shape) for k, v in net.state_dict().items()}
        assert state == expected and list(state) == list(expected)


def test_points_are_the_centres_of_the_voxels_in_their_order():
    features, coords = voxels(200)
    out = unet().eval()(features, coords, 2)
    assert out.point_features.shape == (200, 16)
    assert torch.equal(out.point_coords[:, 0], coords[:, 0].float())
    wanted = (coords[:, [3, 2, 1]] + 0.5) * torch.tensor([0.05, 0.05, 0.1]) + torch.tensor([0, -0.8, -3])
    torch.testing.assert_close(out.point_coords[:, 1:], wanted)
    assert out.encoded_spconv_tensor.spatial_shape == (2, 4, 4) and out.encoded_spconv_tensor_stride == 8


def test_without_the_encoded_tensor():
    features, coords = voxels(50)
    net = unet(return_encoded_tensor=False)
    out = net.eval()(features, coords, 2)
    assert out.encoded_spconv_tensor is None and out.encoded_spconv_tensor_stride is None
    assert net.out_channels == {"point_features": 16}
    assert unet().out_channels == {"point_features": 16, "encoded_spconv_tensor": 128}


@pytest.mark.parametrize("count", [300, 1, 0])
def test_every_parameter_gets_a_finite_gradient(count):
    net = unet()
    features, coords = voxels(count)
    out = net(features, coords, 2)
    total = out.point_features.square().sum() + out.encoded_spconv_tensor.features.square().sum()
    total.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert count < 2 or parameter.grad.any(), name
    assert all(buffer.isfinite().all() for buffer in net.buffers())


def test_two_scenes_are_two_of_one():
    net = unet().eval()
    features, coords = voxels(300)
    whole = net(features, coords, 2).point_features
    for scene in (0, 1):
        own = coords[:, 0] == scene
        alone = coords[own].clone()
        alone[:, 0] = 0
        torch.testing.assert_close(net(features[own], alone, 1).point_features, whole[own], rtol=1e-4, atol=1e-5)
