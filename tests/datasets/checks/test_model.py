"""Each check of a configuration finds a planted fault, and no shipped configuration is accused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pcdet.config import load_config
from pcdet.datasets.checks import Level, model
from pcdet.datasets.checks.facts import Grid, in_grid
from pcdet.datasets.checks.run import grid_settings, settings_problems

NAMES = ["Vehicle", "Pedestrian", "Cyclist"]
SHIPPED = sorted(Path(__file__).parents[3].glob("cfgs/*_models/*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_the_grid_of_no_shipped_configuration_is_accused(path):
    settings = load_config(path).settings
    grid = grid_settings(settings.DATA_CONFIG)
    if grid is None or grid.voxel_size is None:
        return
    assert model.check_grid(grid.limits.tolist(), grid.voxel_size.tolist(), settings.MODEL) == []


def test_frames_without_a_fault_are_not_accused(facts, settings):
    assert settings_problems(facts, settings, grid_settings(settings.DATA_CONFIG), 4) == []


def test_classes_of_other_names_break_training_and_missing_ones_harm_it(facts):
    (problem,) = model.check_classes(facts, ["Car", "Truck"])
    assert problem.level == Level.BREAKS and "labelled are Cyclist 8, Pedestrian 8, Vehicle 20" in problem.message
    missing, other = model.check_classes(facts, ["Vehicle", "Pedestrian", "Cyclists"])
    assert missing.level == Level.HARMS and "is 'cyclist' meant" in missing.message
    assert other.level == Level.NOTE and other.message.endswith("Cyclist 8")


def test_a_range_that_strides_do_not_divide_gets_the_nearest_that_fit(settings):
    size = [0.1, 0.1, 0.15]
    (problem,) = model.check_grid([-75.2, -75.2, -2, 75.5, 75.2, 4], size, settings.MODEL)
    # 1507 voxels; the strides 8 and 2 need a multiple of 16: 1504 end at 75.2, 1520 at 76.8.
    assert problem.level == Level.BREAKS and problem.message.endswith("it may end at 75.2 or 76.8")
    (problem,) = model.check_grid([-75.2, -75.2, -2, 75.25, 75.2, 4], size, settings.MODEL)
    assert problem.level == Level.BREAKS and "75.2" in problem.message


def test_a_height_that_the_head_does_not_expect_gets_the_nearest_that_fits(settings):
    (problem,) = model.check_grid([-75.2, -75.2, -2, 75.2, 75.2, 7.9], [0.1, 0.1, 0.15], settings.MODEL)
    assert problem.level == Level.BREAKS and "66 voxels along z become 3 levels" in problem.message
    assert "end the range at z = " in problem.message


@pytest.mark.parametrize(("cells", "levels"), [(40, 2), (41, 2), (63, 3)])
def test_levels_after_the_sparse_backbone(cells, levels):
    # 41 slices (one is added): 21, 11, 5 (no padding), 2.
    assert model.levels_after_sparse(cells) == levels


def test_pillars_are_one_voxel_high():
    settings = load_config("cfgs/kitti_models/pointpillar.yaml").settings
    (problem,) = model.check_grid([0, -39.68, -3, 69.12, 39.68, 3], [0.16, 0.16, 3], settings.MODEL)
    assert problem.level == Level.BREAKS and "set VOXEL_SIZE's z to 6" in problem.message


def test_anchors_of_other_sizes_or_heights_are_found(facts, settings):
    blocks = settings.MODEL.DENSE_HEAD.ANCHOR_GENERATOR_CONFIG
    blocks[0].anchor_sizes = [[12.0, 2.5, 3.0]]
    blocks[1].anchor_bottom_heights = [-2.5]
    sizes, heights = model.check_anchors(facts, settings.MODEL)
    assert "100% of 20 Vehicle overlap anchor_sizes" in sizes.message
    assert "anchor_bottom_heights of Pedestrian is -2.5, the boxes stand at" in heights.message


def test_overlap_with_the_best_anchor_at_its_own_place():
    boxes = np.array([[5.0, 5, 0, 4, 2, 1, 0.3], [0, 0, 0, 2, 1, 1, 0]])
    overlaps = model.best_anchor_overlaps(boxes, np.array([[4.0, 2, 1], [2, 2, 1]]))
    assert overlaps == pytest.approx([1.0, 0.5])  # 2 x 1 in 2 x 2


def test_voxels_and_points_beyond_their_caps_are_found(facts):
    limits = np.array([-40.0, -40, -2, 40, 40, 4])
    counts = [replace(f, voxels=n) for f, n in zip(facts, (900, 1000, 1100, 1500), strict=True)]
    (problem,) = model.check_voxels(counts, Grid(limits, None, 5, {"train": 1000, "test": 2000}))
    assert problem.level == Level.HARMS and "50% of the clouds fill more than" in problem.message
    (problem,) = model.check_voxels(counts, Grid(limits, None, 5, {"train": 1400}))
    assert problem.level == Level.NOTE and "1.7% of all are dropped" in problem.message  # 100/1500 of one in four
    (problem,) = model.check_voxels([replace(f, voxels=5, crowded=0.4) for f in facts], Grid(limits, None, 5))
    assert problem.message == "MAX_POINTS_PER_VOXEL 5 drops 40% of the points"
    (problem,) = model.check_voxels([replace(f, in_range=0.0) for f in facts], Grid(limits))
    assert problem.level == Level.BREAKS


def test_what_a_grid_holds_by_hand():
    # Two points in one voxel of 1 m, one in another, one outside; a voxel keeps one point.
    xyz = np.array([[0.2, 0.2, 0.2], [0.8, 0.1, 0.3], [3.5, 3.5, 0.5], [9.0, 0.0, 0.0]])
    grid = Grid(np.array([0.0, 0, 0, 4, 4, 1]), np.ones(3), 1)
    assert in_grid(xyz, grid) == (0.75, 2, pytest.approx(1 / 3))


def test_sampling_of_other_classes_features_or_nothing_to_paste_is_found(facts, settings):
    augmentor = settings.DATA_CONFIG.DATA_AUGMENTOR
    assert model.check_sampling(facts, augmentor, NAMES, 4) == []
    (problem,) = model.check_sampling(facts, augmentor, NAMES, 5)
    assert problem.level == Level.BREAKS and "NUM_POINT_FEATURES 4, src_feature_list 5" in problem.message
    poor = [replace(f, inside=np.where((f.names == "Cyclist")[:, None], 0, f.inside)) for f in facts]
    (problem,) = model.check_sampling(poor, augmentor, NAMES, 4)
    assert problem.message.endswith("in 'train': Cyclist")
    augmentor.AUG_CONFIG_LIST[0].SAMPLE_GROUPS = ["Car:15"]
    (problem,) = model.check_sampling(facts, augmentor, NAMES, 4)
    assert problem.message.startswith("SAMPLE_GROUPS names Car")
    augmentor.DISABLE_AUG_LIST = ["gt_sampling"]
    assert model.check_sampling(facts, augmentor, NAMES, 4) == []
