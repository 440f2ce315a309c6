"""Augmentors that move objects, drop sides, or change pyramids."""

import numpy as np
import pytest

from pcdet.datasets.augment import AUGMENTS
from pcdet.datasets.augment.frustum import RandomWorldFrustumDropout
from pcdet.datasets.augment.pyramid import from_unit, pyramid_of, to_unit, transplant
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.structures.scene import Scene

MOVES = {
    "random_local_rotation": {"local_rot_angle": [-0.157, 0.157]},
    "random_local_scaling": {"local_scale_range": [0.95, 1.05]},
    "random_local_translation": {"local_translation_range": [-0.3, 0.3], "along_axis_list": ["x", "y", "z"]},
}
DROPS = {
    "random_world_frustum_dropout": {"intensity_range": [0.0, 0.2], "direction": ["top", "left"]},
    "random_local_frustum_dropout": {"intensity_range": [0.2, 0.4], "direction": ["top"]},
}
PYRAMIDS = {"drop_prob": 0.25, "sparsify_prob": 0.05, "sparsify_max_num": 50, "swap_prob": 0.1, "swap_max_num": 50}
ALL = {**MOVES, **DROPS, "random_local_pyramid_aug": PYRAMIDS}


def membership(scene: Scene) -> np.ndarray:
    return points_in_boxes_mask(scene.points, scene.gt_boxes)


@pytest.mark.parametrize("name", MOVES)
def test_objects_move_with_their_points_and_the_rest_stays(name, scene, context):
    before = membership(scene)
    moved = AUGMENTS[name](context, **MOVES[name])(scene, np.random.default_rng(3))
    after = membership(moved)
    assert (after[before]).all()  # what was inside is inside
    free = ~before.any(axis=0)
    np.testing.assert_array_equal(moved.points[free], scene.points[free])
    assert np.abs(moved.gt_boxes - scene.gt_boxes).max(axis=1).min() > 0  # every object got its own change
    assert len(np.unique((moved.gt_boxes - scene.gt_boxes).round(6), axis=0)) == len(scene.gt_boxes)


@pytest.mark.parametrize("name", ALL)
def test_the_input_is_untouched_seeds_repeat_and_empty_scenes_pass(name, scene, empty_scene, context):
    points, boxes = scene.points.copy(), scene.gt_boxes.copy()
    augment = AUGMENTS[name](context, **ALL[name])
    first, again = (augment(scene, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first.points, again.points)
    np.testing.assert_array_equal(first.gt_boxes, again.gt_boxes)
    np.testing.assert_array_equal(scene.points, points)
    np.testing.assert_array_equal(scene.gt_boxes, boxes)
    assert first.points.dtype == first.gt_boxes.dtype == np.float32
    assert len(augment(empty_scene, np.random.default_rng(0)).points) == 0


def test_local_rotation_and_scaling_by_hand(context):
    box = np.array([[10, 0, 0, 4, 2, 2, 0]], np.float32)
    scene = Scene("one", np.array([[11, 0, 0.5, 0.7]], np.float32), box, np.array(["Car"]))
    turned = AUGMENTS["random_local_rotation"](context, local_rot_angle=[np.pi / 2, np.pi / 2])
    moved = turned(scene, np.random.default_rng(0))
    np.testing.assert_allclose(moved.points, [[10, 1, 0.5, 0.7]], atol=1e-6)
    np.testing.assert_allclose(moved.gt_boxes, [[10, 0, 0, 4, 2, 2, np.pi / 2]], atol=1e-6)
    scaled = AUGMENTS["random_local_scaling"](context, local_scale_range=[1.5, 1.5])
    moved = scaled(scene, np.random.default_rng(0))
    np.testing.assert_allclose(moved.points, [[11.5, 0, 0.75, 0.7]], atol=1e-6)
    np.testing.assert_allclose(moved.gt_boxes, [[10, 0, 0, 6, 3, 3, 0]], atol=1e-6)


@pytest.mark.parametrize(
    "side, kept", [("top", [0, 1, 2]), ("bottom", [1, 2, 3]), ("left", [0, 1, 3]), ("right", [0, 2, 3])]
)
def test_world_frustum_drops_a_slab(side, kept):
    """Extent 10 in y and z; the share 0.25 drops the outer 2.5 m."""
    points = np.array([[1, 0, -5, 0], [2, -5, 0, 0], [3, 5, 0, 0], [4, 0, 5, 0]], np.float32)
    scene = Scene("four", points, np.zeros((0, 7), np.float32), np.zeros(0, "<U3"))
    dropped = RandomWorldFrustumDropout.drop(scene, side, 0.25)
    np.testing.assert_array_equal(dropped.points[:, 0] - 1, kept)


def test_world_frustum_drops_boxes_with_their_names(scene, context):
    augment = AUGMENTS["random_world_frustum_dropout"](context, intensity_range=[0.5, 0.5], direction=["left"])
    dropped = augment(scene, np.random.default_rng(0))
    assert len(dropped.gt_boxes) == len(dropped.gt_names) == 2
    assert (dropped.gt_boxes[:, 1] < 0).all() and (dropped.points[:, 1] < 0.1).all()


def test_local_frustum_takes_the_share_of_the_turned_box(context):
    """A box turned by 90 degrees: its left side is at -x of the scene."""
    x = np.linspace(-0.95, 0.95, 20, dtype=np.float32)
    points = np.stack([10 + x, np.zeros(20), np.zeros(20), np.zeros(20)], axis=1).astype(np.float32)
    box = np.array([[10, 0, 0, 4, 2, 2, np.pi / 2]], np.float32)
    scene = Scene("one", points, box, np.array(["Car"]))
    augment = AUGMENTS["random_local_frustum_dropout"](context, intensity_range=[0.25, 0.25], direction=["left"])
    kept = augment(scene, np.random.default_rng(0)).points
    assert len(kept) == 15 and kept[:, 0].min() > 9.5


def test_unit_coordinates_and_their_pyramids():
    box = np.array([10, 5, 1, 4, 2, 1, 0.7])
    unit = np.array([[-0.9, 0, 0], [0.9, 0.1, 0], [0, -1, 0.5], [0.2, 0.8, 0.1], [0, 0.1, -0.5], [0.1, 0.1, 0.2]])
    np.testing.assert_allclose(to_unit(from_unit(unit, box), box), unit, atol=1e-12)
    assert pyramid_of(unit).tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(from_unit(np.array([[1.0, 0, 0]]), np.array([1, 2, 3, 4, 2, 1, np.pi / 2])), [[1, 4, 3]])


def test_a_transplant_keeps_relative_places_and_the_range_of_intensity():
    donor_box = np.array([0, 0, 0, 2, 2, 2, 0], np.float32)
    box = np.array([10, 0, 0, 4, 2, 2, 0], np.float32)
    donor = np.array([[1, 0, 0, 0.0], [0.5, 0, 0, 1.0]], np.float32)
    old = np.array([[11, 0, 0, 0.2], [11.5, 0, 0, 0.4]], np.float32)
    np.testing.assert_allclose(transplant(donor, donor_box, old, box), [[12, 0, 0, 0.2], [11, 0, 0, 0.4]], atol=1e-6)


def pyramid_counts(scene: Scene) -> np.ndarray:
    """(M, 6) points of each pyramid of each box."""
    inside = membership(scene)
    return np.array(
        [
            np.bincount(pyramid_of(to_unit(scene.points[mask], box)), minlength=6)
            for mask, box in zip(inside, scene.gt_boxes, strict=True)
        ]
    )


def test_pyramid_drop_empties_one_pyramid_of_every_box(scene, context):
    options = {**PYRAMIDS, "drop_prob": 1.0, "sparsify_prob": 0.0, "swap_prob": 0.0}
    dropped = AUGMENTS["random_local_pyramid_aug"](context, **options)(scene, np.random.default_rng(0))
    before, after = pyramid_counts(scene), pyramid_counts(dropped)
    assert ((before > 0) & (after == 0)).sum(axis=1).tolist() == [1, 1, 1, 1]
    assert ((after == before) | (after == 0)).all()


def test_pyramid_sparsify_thins_every_crowded_pyramid(scene, context):
    options = {**PYRAMIDS, "drop_prob": 0.0, "sparsify_prob": 1.0, "sparsify_max_num": 5, "swap_prob": 0.0}
    thinned = AUGMENTS["random_local_pyramid_aug"](context, **options)(scene, np.random.default_rng(0))
    np.testing.assert_array_equal(pyramid_counts(thinned), np.minimum(pyramid_counts(scene), 5))


def test_pyramid_swap_brings_the_points_of_another_object(scene, context):
    options = {**PYRAMIDS, "drop_prob": 0.0, "sparsify_prob": 0.0, "swap_prob": 1.0, "swap_max_num": 0}
    swapped = AUGMENTS["random_local_pyramid_aug"](context, **options)(scene, np.random.default_rng(0))
    before, after = pyramid_counts(scene), pyramid_counts(swapped)
    for m, p in np.ndindex(before.shape):
        assert after[m, p] in np.delete(before[:, p], m)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("random_local_translation", {"local_translation_range": [0, 1], "along_axis_list": ["w"]}, "ALONG_AXIS_LIST"),
        ("random_local_scaling", {"local_scale_range": [0, 1]}, "LOCAL_SCALE_RANGE"),
        ("random_local_frustum_dropout", {"intensity_range": [0, 2], "direction": ["top"]}, "INTENSITY_RANGE"),
        ("random_world_frustum_dropout", {"intensity_range": [0, 0.2], "direction": ["up"]}, "DIRECTION"),
        ("random_local_pyramid_aug", {**PYRAMIDS, "drop_prob": 2}, "DROP_PROB"),
    ],
)
def test_impossible_options_are_refused(name, options, message, context):
    with pytest.raises(ValueError, match=message):
        AUGMENTS[name](context, **options)
