import torch

from pcdet.models.registry import VFES
from pcdet.models.vfe.dynamic_mean import DynMeanVFE
from pcdet.models.vfe.mean_vfe import MeanVFE
from pcdet.ops.voxelize import voxelize
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car",), ("x", "y", "z", "i"), (0, -4, -3, 8, 4, 1), (0.5, 0.5, 0.4), (16, 16, 10))


def encoder() -> DynMeanVFE:
    return DynMeanVFE(INFO, {"points": 4})


def test_it_is_registered_and_says_what_it_writes():
    assert VFES["DynMeanVFE"] is DynMeanVFE
    assert encoder().out_channels == {"voxel_features": 4} and not list(encoder().parameters())


def test_means_by_hand():
    points = [[1, 7.9, 3.9, 0.9, 4], [0, 0.1, -3.9, -2.9, 2], [0, 0.3, -3.7, -2.7, 6], [0, 0.1, -3.9, -2.5, 8]]
    outside = [[0, 8.0, 0, 0, 9], [0, 1, -4.1, 0, 9], [0, 1, 0, 1.0, 9]]  # the upper bound is outside
    out = encoder()(torch.tensor(points + outside))
    assert out.voxel_coords.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [1, 9, 15, 15]]  # scene, z, y, x
    assert out.voxel_coords.dtype == torch.int32
    expected = torch.tensor([[0.2, -3.8, -2.8, 4], [0.1, -3.9, -2.5, 8], [7.9, 3.9, 0.9, 4]])
    torch.testing.assert_close(out.voxel_features, expected)


def test_it_equals_the_mean_of_a_voxelizer_without_limits():
    draw = torch.Generator().manual_seed(0)
    points = torch.rand(3000, 4, generator=draw) * torch.tensor([8.5, 8.5, 4.5, 1.0]) - torch.tensor([0.2, 4.2, 3.2, 0])
    made = voxelize(points.numpy(), INFO.point_cloud_range, INFO.voxel_size, INFO.grid_size, 100, 5000)
    voxels, coords, counts = (torch.from_numpy(part) for part in made)
    expected = MeanVFE(INFO, {})(voxels, counts).voxel_features
    order = ((coords[:, 2] * 16 + coords[:, 1]) * 10 + coords[:, 0]).argsort()  # by x, y, z
    out = encoder()(torch.cat([torch.zeros(3000, 1), points], dim=1))
    assert torch.equal(out.voxel_coords[:, 1:], coords[order].int())
    torch.testing.assert_close(out.voxel_features, expected[order], rtol=1e-5, atol=1e-6)


def test_no_points_at_all():
    out = encoder()(torch.zeros(0, 5))
    assert out.voxel_features.shape == (0, 4) and out.voxel_coords.shape == (0, 4)
