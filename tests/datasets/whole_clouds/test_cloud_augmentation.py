"""Augmentation of clouds: each step alone, by its definition."""

import math

import numpy as np
import pytest

from pcdet.datasets.whole_clouds.augmentation import CloudAugmentor, rotation_matrix
from pcdet.datasets.whole_clouds.cloud_dataset import to_unit_sphere


@pytest.fixture
def cloud():
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(200, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return np.concatenate([rng.normal(size=(200, 3)), normals], axis=1).astype(np.float32)


def augment(settings, cloud, seed=1, vectors=slice(3, 6)):
    return CloudAugmentor(settings)(cloud, vectors, np.random.default_rng(seed))


def test_without_settings_nothing_changes(cloud):
    assert np.array_equal(augment({}, cloud), cloud)


def test_turn_by_hand():
    assert rotation_matrix(2, math.pi / 2) @ [1, 0, 0] == pytest.approx([0, 1, 0], abs=1e-12)
    assert rotation_matrix(1, math.pi / 2) @ [0, 0, 1] == pytest.approx([1, 0, 0], abs=1e-12)
    assert rotation_matrix(0, math.pi / 2) @ [0, 1, 0] == pytest.approx([0, 0, 1], abs=1e-12)


@pytest.mark.parametrize("axis, column", [("x", 0), ("y", 1), ("z", 2)])
def test_rotation_keeps_the_up_axis_and_turns_normals_alike(cloud, axis, column):
    out = augment({"UP_AXIS": axis, "ROTATION": [0.5, 0.5]}, cloud)
    assert np.allclose(out[:, column], cloud[:, column], atol=1e-6)
    assert not np.allclose(out[:, :3], cloud[:, :3], atol=0.1)
    turn = np.linalg.lstsq(cloud[:, :3], out[:, :3], rcond=None)[0]
    assert np.allclose(cloud[:, 3:] @ turn, out[:, 3:], atol=1e-5)
    assert np.trace(turn) == pytest.approx(1 + 2 * math.cos(0.5), abs=1e-5)


def test_scale_and_shift_leave_normals_alone(cloud):
    out = augment({"SCALE": [2.0, 2.0], "SHIFT": 0.1}, cloud)
    moved = out[:, :3] - 2 * cloud[:, :3]
    assert np.allclose(moved, moved[0], atol=1e-5) and np.abs(moved).max() <= 0.1
    assert np.array_equal(out[:, 3:], cloud[:, 3:])


def test_jitter_is_clipped(cloud):
    noise = (augment({"JITTER_SIGMA": 0.04, "JITTER_CLIP": 0.05}, cloud) - cloud)[:, :3]
    assert np.abs(noise).max() == pytest.approx(0.05, abs=1e-5)
    assert 0.02 < noise.std() < 0.04


def test_perturbation_is_a_small_turn(cloud):
    out = augment({"PERTURB_SIGMA": 0.06, "PERTURB_CLIP": 0.18}, cloud)
    assert np.linalg.norm(out[:, :3], axis=1) == pytest.approx(np.linalg.norm(cloud[:, :3], axis=1), rel=1e-4)
    assert 0 < np.abs(out - cloud).max() < 4 * 0.18 * 3


def test_dropped_points_become_the_first_one(cloud):
    out = augment({"DROPOUT": 0.875}, cloud, seed=3)
    changed = (out != cloud).any(axis=1)
    assert 0 < changed.sum() < 0.95 * len(cloud)
    assert (out[changed] == cloud[0]).all()


def test_shuffling_keeps_the_rows(cloud):
    out = augment({"SHUFFLE": True}, cloud)
    assert not np.array_equal(out, cloud)
    assert np.array_equal(np.sort(out, axis=0), np.sort(cloud, axis=0))


@pytest.mark.parametrize(
    "settings", [{"SCALE": [0.0, 1.0]}, {"ROTATION": [1.0, -1.0]}, {"DROPOUT": 1.0}, {"JITTER_SIGMA": -1.0}]
)
def test_wrong_numbers_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        CloudAugmentor(settings)


def test_the_unit_sphere_by_hand():
    cloud = np.array([[1.0, 0, 0, 7], [3.0, 0, 0, 8]], dtype=np.float32)
    assert to_unit_sphere(cloud).tolist() == [[-1, 0, 0, 7], [1, 0, 0, 8]]
    assert to_unit_sphere(np.ones((4, 3), dtype=np.float32)).tolist() == [[0, 0, 0]] * 4


def test_three_scales_turn_normals_as_the_surface(cloud):
    """The plane x + y = 1, stretched: its normal stays perpendicular to it and of length 1."""
    s = np.linspace(0, 1, 50, dtype=np.float32)
    plane = np.stack([s, 1 - s, s**2], axis=1)
    normal = np.tile(np.float32([0.5**0.5, 0.5**0.5, 0]), (50, 1))
    out = augment({"SCALE": [0.5, 2.0], "SCALE_PER_AXIS": True}, np.concatenate([plane, normal], axis=1), seed=3)
    factors = out[-1, :3] / np.float32([1, 1e-9, 1])
    assert abs(out[-1, 0] - out[-1, 2]) > 1e-3 and factors[0] != factors[2]
    assert (out[1:, :3] - out[:1, :3]) @ out[0, 3:] == pytest.approx(np.zeros(49), abs=1e-5)
    assert np.linalg.norm(out[:, 3:], axis=1) == pytest.approx(1, abs=1e-5)
