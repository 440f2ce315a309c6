"""Processors that select and order points."""

import numpy as np
import pytest

from pcdet.datasets.process import PROCESSORS, ProcessContext
from pcdet.structures.scene import Scene

RANGE = np.array([0, -40, -3, 70.4, 40, 1], dtype=np.float32)
FEATURES = ("x", "y", "z", "intensity")


def context(training: bool = True) -> ProcessContext:
    return ProcessContext(training, RANGE, FEATURES)


def cloud(rows) -> np.ndarray:
    return np.array(rows, dtype=np.float32).reshape(-1, 4)


def boxes(rows) -> np.ndarray:
    return np.array(rows, dtype=np.float32).reshape(-1, 7)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_range_is_closed_and_blind_to_height():
    points = cloud([[0, -40, 9, 0], [70.4, 40, -9, 0], [-0.01, 0, 0, 0], [70.5, 0, 0, 0], [5, 40.01, 0, 0]])
    mask = PROCESSORS["mask_points_and_boxes_outside_range"](context())
    assert len(mask(Scene("f", points), rng()).points) == 2


def test_boxes_outside_are_removed_in_training_only():
    rows = boxes([[10, 0, 0, 4, 2, 2, 0], [71, 0, 0, 4, 2, 2, 0], [10, 0, 1.5, 4, 2, 2, 0], [70.4, 40, 1, 4, 2, 2, 0]])
    scene = Scene("f", cloud([]), rows, np.array(["a", "b", "c", "d"]))
    mask = PROCESSORS["mask_points_and_boxes_outside_range"]
    assert mask(context())(scene, rng()).gt_names.tolist() == ["a", "d"]
    assert len(mask(context(training=False))(scene, rng()).gt_boxes) == 4
    assert len(mask(context(), remove_outside_boxes=False)(scene, rng()).gt_boxes) == 4


def test_boxes_may_be_judged_by_their_corners():
    rows = boxes([[71, 0, 0, 4, 2, 2, 0], [75, 0, 0, 4, 2, 2, 0]])
    scene = Scene("f", cloud([]), rows, np.array(["a", "b"]))
    mask = PROCESSORS["mask_points_and_boxes_outside_range"]
    assert mask(context(), use_center_to_filter=False)(scene, rng()).gt_names.tolist() == ["a"]
    assert len(mask(context(), use_center_to_filter=False, min_num_corners=5)(scene, rng()).gt_names) == 0


def test_shuffling_is_a_permutation_in_training_only():
    points = cloud(np.arange(400))
    shuffle = PROCESSORS["shuffle_points"]
    options = {"shuffle_enabled": {"train": True, "test": False}}
    shuffled = shuffle(context(), **options)(Scene("f", points), rng()).points
    assert not np.array_equal(shuffled, points)
    np.testing.assert_array_equal(np.sort(shuffled[:, 0]), points[:, 0])
    np.testing.assert_array_equal(shuffle(context(False), **options)(Scene("f", points), rng()).points, points)


def ring(count: int, radius: float) -> np.ndarray:
    angles = np.linspace(0, np.pi, count)
    return cloud(np.stack([radius * np.cos(angles), radius * np.sin(angles), 0 * angles, np.arange(count)], axis=1))


@pytest.mark.parametrize("far, near", [(300, 40), (0, 40), (0, 1), (10, 1000), (256, 10), (0, 256)])
def test_b3_every_cloud_gets_the_number_asked_for(far, near):
    """Too many far points, few points, one point: 256 rows; each point once before any is repeated again."""
    points = np.concatenate([ring(far, 50), ring(near, 20)])
    sample = PROCESSORS["sample_points"](context(), num_points={"train": 256, "test": 256})
    chosen = sample.choose(points, rng())
    assert len(chosen) == 256
    counts = np.bincount(chosen, minlength=len(points))
    if len(points) >= 256:
        assert counts.max() == 1
    else:
        assert counts.max() - counts.min() <= 1
    if far < 256 <= far + near:
        assert (counts[:far] == 1).all()  # every far point stays


def test_b3_an_empty_cloud_stays_empty():
    sample = PROCESSORS["sample_points"](context(), num_points={"train": 256, "test": 256})
    assert sample(Scene("f", cloud([])), rng()).points.shape == (0, 4)


def test_minus_one_point_samples_nothing():
    points = ring(20, 5)
    sample = PROCESSORS["sample_points"](context(False), num_points={"train": 256, "test": -1})
    np.testing.assert_array_equal(sample(Scene("f", points), rng()).points, points)
    with pytest.raises(ValueError, match="no entry 'train'"):
        PROCESSORS["sample_points"](context(), num_points={"test": 5})
