"""Voxelization: hand cases, the reference, bad points, recorded voxels."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator

from pcdet.ops.voxelize import Voxels, reference, voxelize

GRID = ([0.0, 0.0, 0.0, 4.0, 4.0, 4.0], [0.5, 0.5, 1.0], [8, 8, 4])


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


def test_by_hand():
    points = torch.tensor([[3.2, 0.8, 3.4, 9], [0.1, 0.1, 0.1, 8], [3.4, 0.9, 3.9, 7], [3.3, 0.6, 3.0, 6]])
    found = voxelize(points, *GRID, max_points_per_voxel=2, max_voxels=10)
    assert isinstance(found, Voxels)
    assert found.coords.tolist() == [[3, 1, 6], [0, 0, 0]] and found.coords.dtype == torch.int32
    assert found.num_points.tolist() == [2, 1] and found.num_points.dtype == torch.int32
    assert torch.equal(found.voxels[0], points[[0, 2]])  # the first two of three
    assert torch.equal(found.voxels[1], torch.stack([points[1], torch.zeros(4)]))


def test_voxels_that_exist_still_fill_up_beyond_the_cap():
    points = torch.tensor([[0.1, 0, 0], [1.1, 0, 0], [2.1, 0, 0], [0.2, 0, 0], [1.2, 0, 0]])
    found = voxelize(points, *GRID, max_points_per_voxel=5, max_voxels=2)
    assert found.coords[:, 2].tolist() == [0, 2]
    assert found.num_points.tolist() == [2, 2]


def test_the_lower_border_is_inside_and_the_upper_one_is_not():
    points = torch.tensor([[0.0, 0, 0], [4.0, 1, 1], [1, 4.0, 1], [1, 1, 4.0], [-1e-6, 1, 1], [3.999, 3.999, 3.999]])
    assert voxelize(points, *GRID, 5, 10).coords.tolist() == [[0, 0, 0], [3, 7, 7]]


def test_b15_points_that_are_not_finite_are_dropped():
    points = torch.rand(100, 4, generator=generator()) * 3.9
    points[[3, 40, 77], 0] = math.nan
    points[50, 2] = math.inf
    points[60, 2] = -math.inf
    points[90, 3] = math.nan
    good = points[points.isfinite().all(1)]
    assert len(good) == 94
    for module in ("door", "reference"):
        found = voxelize(points, *GRID, 50, 300) if module == "door" else reference.voxelize(points, *plain(50, 300))
        assert_same(found, voxelize(good, *GRID, 50, 300))
    assert len(voxelize(torch.full((5, 4), math.nan), *GRID, 5, 10).coords) == 0


def plain(max_points, max_voxels):
    return GRID[0][:3], GRID[1], GRID[2], max_points, max_voxels


@pytest.mark.parametrize("count", [0, 1, 2000])
@pytest.mark.parametrize("max_points, max_voxels", [(1, 1), (3, 40), (32, 1000)])
def test_kernel_matches_reference(count, max_points, max_voxels):
    points = torch.rand(count, 5, generator=generator()) * 4.4 - 0.2
    points[: count // 4] = points[count // 2 : count // 2 + count // 4].round()  # on the borders of cells
    found = voxelize(points, *GRID, max_points, max_voxels)
    assert_same(found, reference.voxelize(points, *plain(max_points, max_voxels)))
    assert len(found.voxels) == len(found.coords) == len(found.num_points) <= max_voxels


def test_every_point_lies_in_its_voxel_and_none_is_lost():
    points = torch.rand(3000, 3, generator=generator()) * 4
    found = voxelize(points, *GRID, 3000, 3000)
    assert found.num_points.sum() == 3000
    assert len(found.coords.unique(dim=0)) == len(found.coords)
    cell = (found.voxels / torch.tensor(GRID[1])).floor().flip(2)  # (V, P, 3) z y x
    taken = torch.arange(3000)[None] < found.num_points[:, None]
    assert (cell == found.coords[:, None]).all(-1)[taken].all()


def test_a_grid_too_large_for_a_table_of_its_cells():
    points = torch.rand(500, 3, generator=generator()) * 1e5
    grid = ([0.0, 0, 0, 1e5, 1e5, 1e5], [0.1, 0.1, 0.1], [10**6, 10**6, 10**6])
    found = voxelize(points, *grid, 3, 600)
    assert len(found.coords) == 500
    assert (found.coords >= 0).all() and (found.coords < 10**6).all()


def test_arrays_give_the_same_as_tensors():
    points = torch.rand(300, 4, generator=generator()) * 4
    expected = voxelize(points, *GRID, 3, 100)
    frozen = points.numpy().astype(np.float64).astype(np.float32)
    frozen.flags.writeable = False
    for array in (points.numpy(), frozen, np.asfortranarray(points.numpy())):
        found = voxelize(array, *(np.array(part) for part in GRID), 3, 100)
        assert all(isinstance(part, np.ndarray) for part in found)
        assert_same(found, expected)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"points": torch.zeros(5, 2)}, r"\(N, 3\+\)"),
        ({"points": torch.zeros(1, 5, 3)}, r"\(N, 3\+\)"),
        ({"point_cloud_range": [0, 0, 0]}, "point_cloud_range must have 6"),
        ({"voxel_size": [0.1, 0.1]}, "voxel_size must have 3"),
        ({"voxel_size": [0.1, 0.1, 0.0]}, "above 0"),
        ({"max_voxels": 0}, "at least 1"),
    ],
)
def test_bad_arguments(change, message):
    good = {
        "points": torch.zeros(5, 3),
        "point_cloud_range": GRID[0],
        "voxel_size": GRID[1],
        "grid_size": GRID[2],
        "max_points_per_voxel": 5,
        "max_voxels": 10,
    }
    with pytest.raises(ValueError, match=message):
        voxelize(**{**good, **change})


@pytest.mark.parametrize("max_points, max_voxels", [(5, 1000), (2, 60), (32, 40)])
def test_recorded_voxels(shared, max_points, max_voxels):
    data = np.load(shared / "oracles" / "ops" / "voxelize.npz")
    found = voxelize(data["in_points"], *GRID, max_points, max_voxels)
    names = ("out_voxels", "out_coords_zyx", "out_num")
    assert_same(found, [data[f"{name}_{max_points}_{max_voxels}"] for name in names])
