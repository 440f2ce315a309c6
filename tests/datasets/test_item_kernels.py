"""The compiled loops of an item against the plain forms, to the bit, and random orders against chance."""

import functools

import numpy as np
import pytest

from pcdet.datasets.augment.registry import AugmentContext
from pcdet.datasets.augment.world import (
    RandomWorldFlip,
    RandomWorldRotation,
    RandomWorldScaling,
    RandomWorldTranslation,
    augmented,
    flip_step,
    moved,
    rotate_step,
    scale_step,
    translate_step,
)
from pcdet.datasets.kernels import draw_order
from pcdet.datasets.process.points import random_order
from pcdet.structures.scene import Scene


@pytest.mark.parametrize("seed", range(8))
def test_steps_in_one_pass_equal_a_pass_a_step_to_the_bit(scene, seed):
    rng = np.random.default_rng(seed)
    kinds = [
        lambda: flip_step("x"),
        lambda: flip_step("y"),
        lambda: rotate_step(rng.uniform(-4, 4)),
        lambda: scale_step(rng.uniform(0.5, 2)),
        lambda: translate_step(rng.normal(0, 1, 3)),
    ]
    steps = [kinds[i]() for i in rng.permutation(5)] + [kinds[rng.integers(5)]() for _ in range(seed)]
    expected = functools.reduce(lambda before, step: step.plain(before), steps, scene)
    untouched = scene.points.copy()
    result = moved(scene, steps)
    assert result.points.dtype == np.float32
    np.testing.assert_array_equal(result.points, expected.points)
    np.testing.assert_array_equal(result.gt_boxes, expected.gt_boxes)
    np.testing.assert_array_equal(scene.points, untouched)


def test_augmentors_together_draw_as_they_would_alone(scene, empty_scene, context: AugmentContext):
    def drop_first(before: Scene, rng: np.random.Generator) -> Scene:
        return before.with_(points=before.points[int(rng.integers(1, 5)) :])

    chain = [
        RandomWorldFlip(context, along_axis_list=["x", "y"]),
        RandomWorldRotation(context, world_rot_angle=[-1, 1]),
        drop_first,
        RandomWorldScaling(context, world_scale_range=[0.9, 1.1]),
        RandomWorldTranslation(context, noise_translate_std=[1, 1, 0.2]),
    ]
    for seed in range(10):
        for start in (scene, empty_scene):
            rng, one_by_one = np.random.default_rng(seed), start
            for augment in chain:
                one_by_one = augment(one_by_one, rng)
            together = augmented(start, chain, np.random.default_rng(seed))
            np.testing.assert_array_equal(together.points, one_by_one.points)
            np.testing.assert_array_equal(together.gt_boxes, one_by_one.gt_boxes)


@pytest.mark.parametrize("total, count", [(0, 0), (1, 1), (5, 0), (5, 3), (1000, 1000), (1000, 10)])
def test_an_order_repeats_no_number(total, count):
    order = random_order(total, count, np.random.default_rng(3))
    assert order.shape == (count,) and order.dtype == np.int64
    assert len(set(order.tolist())) == count and all(0 <= i < total for i in order)
    np.testing.assert_array_equal(order, random_order(total, count, np.random.default_rng(3)))


def test_orders_are_as_even_as_chance():
    """Counts of each number at each place, of the pairs at the first two places, and of neighbours left as they were.

    The sums of squared deviations follow chi-squared distributions; the limits are 6 standard deviations above.
    """
    draws, size = 20_000, 6
    orders = np.stack([random_order(size, size, rng) for rng in map(np.random.default_rng, range(draws))])
    for place in range(size):
        assert chi_squared(orders[:, place], size) < (size - 1) + 6 * np.sqrt(2 * (size - 1))
    pairs = orders[:, 0] * size + orders[:, 1]
    kinds = size * (size - 1)
    counts = np.bincount(pairs, minlength=size * size).reshape(size, size)
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(size, dtype=bool)]
    assert ((off - draws / kinds) ** 2 / (draws / kinds)).sum() < (kinds - 1) + 6 * np.sqrt(2 * (kinds - 1))
    large = random_order(20_000, 20_000, np.random.default_rng(0))
    assert np.sum(np.diff(large) == 1) < 10  # 1 is expected
    assert abs(np.corrcoef(large, np.arange(20_000))[0, 1]) < 0.03


def chi_squared(values: np.ndarray, kinds: int) -> float:
    expected = len(values) / kinds
    return float(((np.bincount(values, minlength=kinds) - expected) ** 2 / expected).sum())


def test_other_seeds_draw_other_orders():
    seeds = [np.uint64(s) for s in (0, 1, 2**63, 2**64 - 1)]
    assert len({draw_order(50, 50, seed).tobytes() for seed in seeds}) == 4
