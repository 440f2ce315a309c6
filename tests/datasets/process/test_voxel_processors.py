"""Processors that lay the voxel grid."""

import numpy as np
import pytest

from pcdet.datasets.process import PROCESSORS, ProcessContext
from pcdet.datasets.process.voxels import grid_of
from pcdet.structures.scene import Scene
from pcdet.utils.registry import construct

FEATURES = ("x", "y", "z", "intensity")


def context(limits, training: bool = True) -> ProcessContext:
    return ProcessContext(training, np.array(limits, dtype=np.float32), FEATURES)


@pytest.mark.parametrize(
    "limits, size, grid",
    [
        ([0, -40, -3, 70.4, 40, 1], [0.05, 0.05, 0.1], (1408, 1600, 40)),
        ([0, -39.68, -3, 69.12, 39.68, 1], [0.16, 0.16, 4], (432, 496, 1)),
        ([-75.2, -75.2, -2, 75.2, 75.2, 4], [0.1, 0.1, 0.15], (1504, 1504, 40)),
        ([2, -30.08, -3, 46.8, 30.08, 1], [0.16, 0.16, 0.16], (280, 376, 25)),
    ],
)
def test_grids_of_the_known_configurations(limits, size, grid):
    assert grid_of(np.array(limits, np.float32), size) == grid
    for name in ("calculate_grid_size", "transform_points_to_voxels_placeholder"):
        assert PROCESSORS[name](context(limits), voxel_size=size).grid_size == grid


def test_limits_mean_nothing_to_dynamic_voxels():
    """OpenPCDet's configurations of dynamic encoders keep the keys of the voxelizer."""
    block = {"VOXEL_SIZE": [1, 1, 2], "MAX_POINTS_PER_VOXEL": 2, "MAX_NUMBER_OF_VOXELS": {"train": 1, "test": 1}}
    placeholder = construct(
        PROCESSORS["transform_points_to_voxels_placeholder"], block, context([0, 0, 0, 4, 4, 4], True)
    )
    assert placeholder.grid_size == (4, 4, 2) and placeholder.max_points_per_voxel is None
    scene = Scene("0", np.zeros((3, 4), np.float32))
    assert placeholder(scene, np.random.default_rng(0)) is scene


def test_c13_a_voxel_that_does_not_divide_the_range_is_refused_with_the_nearest_ends():
    with pytest.raises(ValueError, match=r"from 0 to 70 along x.*437.5 voxels.*0.16.*end it at 69.92 or 70.08"):
        grid_of(np.array([0, -40, -3, 70, 40, 1], np.float32), [0.16, 0.16, 4])
    with pytest.raises(ValueError, match="three positive lengths"):
        grid_of(np.array([0, -40, -3, 70, 40, 1], np.float32), [0.16, 0, 4])


def voxelizer(training: bool = True, most: int = 10):
    return PROCESSORS["transform_points_to_voxels"](
        context([0, 0, 0, 4, 4, 4], training),
        voxel_size=[1, 1, 2],
        max_points_per_voxel=2,
        max_number_of_voxels={"train": most, "test": 20},
    )


def test_voxels_by_hand():
    points = np.array(
        [[0.5, 0.5, 0.5, 1], [0.6, 0.5, 0.5, 2], [3.5, 2.5, 3.5, 3], [0.7, 0.5, 0.5, 4], [0.5, 0.5, 9, 5]], np.float32
    )
    extras = voxelizer()(Scene("f", points), np.random.default_rng(0)).extras
    assert extras["voxel_coords"].tolist() == [[0, 0, 0], [1, 2, 3]]  # z y x
    assert extras["voxel_num_points"].tolist() == [2, 1]
    np.testing.assert_array_equal(extras["voxels"][0], points[:2])
    np.testing.assert_array_equal(extras["voxels"][1], [points[2], np.zeros(4)])
    assert [v.dtype for v in extras.values()] == [np.float32, np.int32, np.int32]


def test_the_limit_of_voxels_is_that_of_the_mode():
    points = np.array([[i % 4 + 0.5, i // 4 + 0.5, 0.5, 0] for i in range(16)], np.float32)
    lengths = [len(voxelizer(t)(Scene("f", points), None).extras["voxels"]) for t in (True, False)]
    assert lengths == [10, 16]


def test_an_empty_cloud_has_no_voxels():
    extras = voxelizer()(Scene("f", np.zeros((0, 4), np.float32)), np.random.default_rng(0)).extras
    assert extras["voxels"].shape == (0, 2, 4) and extras["voxel_coords"].shape == (0, 3)
