"""Augmentors that move the whole scene."""

import numpy as np
import pytest

from pcdet.datasets.augment import AUGMENTS
from pcdet.datasets.augment.world import flip, rotate, scale, translate
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.structures.scene import Scene

OPTIONS = {
    "random_world_flip": {"along_axis_list": ["x", "y"]},
    "random_world_rotation": {"world_rot_angle": [-0.78, 0.78]},
    "random_world_scaling": {"world_scale_range": [0.95, 1.05]},
    "random_world_translation": {"noise_translate_std": [0.5, 0.5, 0.5]},
}


def one(point, box) -> Scene:
    return Scene("one", np.array([point], np.float32), np.array([box], np.float32), np.array(["Car"]))


def membership(scene: Scene) -> np.ndarray:
    return points_in_boxes_mask(scene.points, scene.gt_boxes)


@pytest.mark.parametrize(
    "change, point, box",
    [
        (lambda s: flip(s, "x"), [1, -2, 3, 0.5], [1, -2, 3, 4, 5, 6, -0.3]),
        (lambda s: flip(s, "y"), [-1, 2, 3, 0.5], [-1, 2, 3, 4, 5, 6, np.pi - 0.3]),
        (lambda s: rotate(s, np.pi / 2), [-2, 1, 3, 0.5], [-2, 1, 3, 4, 5, 6, 0.3 + np.pi / 2]),
        (
            lambda s: rotate(s, 3.0),
            None,
            [*(np.array([[-0.98999, -0.14112], [0.14112, -0.98999]]) @ [1, 2]), 3, 4, 5, 6, 3.3 - 2 * np.pi],
        ),
        (lambda s: scale(s, 2.0), [2, 4, 6, 0.5], [2, 4, 6, 8, 10, 12, 0.3]),
        (lambda s: translate(s, np.array([1, 0, -1])), [2, 2, 2, 0.5], [2, 2, 2, 4, 5, 6, 0.3]),
    ],
)
def test_hand_computed(change, point, box):
    moved = change(one([1, 2, 3, 0.5], [1, 2, 3, 4, 5, 6, 0.3]))
    np.testing.assert_allclose(moved.gt_boxes[0], box, atol=1e-4)
    np.testing.assert_allclose(moved.points[0], point if point else [*box[:3], 0.5], atol=1e-4)


@pytest.mark.parametrize("name", OPTIONS)
def test_points_stay_in_their_boxes_and_the_input_is_untouched(name, scene, context):
    before = membership(scene)
    points, boxes = scene.points.copy(), scene.gt_boxes.copy()
    for seed in range(5):
        moved = AUGMENTS[name](context, **OPTIONS[name])(scene, np.random.default_rng(seed))
        np.testing.assert_array_equal(membership(moved), before)
        assert moved.points.dtype == moved.gt_boxes.dtype == np.float32
        assert (np.abs(moved.gt_boxes[:, 6]) <= np.pi + 1e-6).all()
        np.testing.assert_array_equal(moved.gt_names, scene.gt_names)
        np.testing.assert_array_equal(moved.points[:, 3], points[:, 3])
    np.testing.assert_array_equal(scene.points, points)
    np.testing.assert_array_equal(scene.gt_boxes, boxes)


@pytest.mark.parametrize("name", OPTIONS)
def test_equal_seeds_give_equal_scenes_and_an_empty_scene_passes(name, scene, empty_scene, context):
    augment = AUGMENTS[name](context, **OPTIONS[name])
    first, again = (augment(scene, np.random.default_rng(7)).gt_boxes for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(augment(empty_scene, np.random.default_rng(0)).points) == 0


def test_a_flip_happens_half_of_the_time(scene, context):
    augment = AUGMENTS["random_world_flip"](context, along_axis_list=["x"])
    rng = np.random.default_rng(0)
    flips = sum(augment(scene, rng).gt_boxes[0, 1] != scene.gt_boxes[0, 1] for _ in range(400))
    assert 160 < flips < 240  # four standard deviations


def test_draws_fill_their_ranges(scene, context):
    rng = np.random.default_rng(0)
    turn = AUGMENTS["random_world_rotation"](context, world_rot_angle=0.5)
    angles = [turn(scene, rng).gt_boxes[0, 6] - scene.gt_boxes[0, 6] for _ in range(300)]
    assert -0.5 <= min(angles) < -0.45 and 0.45 < max(angles) <= 0.5
    stretch = AUGMENTS["random_world_scaling"](context, world_scale_range=[0.9, 1.1])
    factors = [stretch(scene, rng).gt_boxes[0, 3] / scene.gt_boxes[0, 3] for _ in range(300)]
    assert 0.9 <= min(factors) < 0.92 and 1.08 < max(factors) <= 1.1 + 1e-6
    move = AUGMENTS["random_world_translation"](context, noise_translate_std=[0.5, 0.0, 1.0])
    offsets = np.array([move(scene, rng).gt_boxes[0, :3] - scene.gt_boxes[0, :3] for _ in range(400)])
    np.testing.assert_allclose(offsets.std(axis=0), [0.5, 0, 1], atol=0.12)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("random_world_flip", {"along_axis_list": ["z"]}, "ALONG_AXIS_LIST"),
        ("random_world_rotation", {"world_rot_angle": [0.5, -0.5]}, "WORLD_ROT_ANGLE"),
        ("random_world_scaling", {"world_scale_range": [-1, 1]}, "WORLD_SCALE_RANGE"),
        ("random_world_translation", {"noise_translate_std": [1, 1]}, "NOISE_TRANSLATE_STD"),
    ],
)
def test_impossible_options_are_refused(name, options, message, context):
    with pytest.raises(ValueError, match=message):
        AUGMENTS[name](context, **options)
