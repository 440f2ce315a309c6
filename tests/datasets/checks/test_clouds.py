"""Each check of clouds finds a planted fault, and none accuses frames without one."""

from dataclasses import replace

import numpy as np
import pytest

from pcdet.datasets.checks import Level, clouds

CHECKS = (clouds.check_points, clouds.check_intensity, clouds.check_ground, clouds.check_duplicates)


def test_frames_without_a_fault_are_not_accused(facts, tmp_path):
    assert [p for check in CHECKS for p in check(facts)] == []
    assert clouds.check_ground(facts, [-40, -40, -2, 40, 40, 4]) == []
    assert clouds.check_columns(facts, [tmp_path / f.frame for f in facts], 4) == []


def test_the_ground_is_measured_to_a_centimetre(facts):
    assert [f.ground for f in facts] == pytest.approx([0.0] * 4, abs=0.015)


def test_empty_clouds_dropped_points_and_map_coordinates_are_found(facts):
    (problem,) = clouds.check_points([*facts, replace(facts[0], frame="empty", points=0)])
    assert problem.level == Level.HARMS and "1 of 5 clouds hold no point: empty" in problem.message
    (problem,) = clouds.check_points([replace(f, points=0) for f in facts])
    assert problem.level == Level.BREAKS
    (problem,) = clouds.check_points([replace(facts[0], dropped=3), *facts[1:]])
    assert problem.level == Level.NOTE and problem.message.startswith("3 points are NaN")
    (problem,) = clouds.check_points([replace(f, farthest=5.0e5) for f in facts])
    assert problem.check == "coordinates" and "0.031 m" in problem.message  # the step of float32 at 500 km


@pytest.mark.parametrize(("columns", "read_as"), [(5, 4), (6, 4), (4, 5), (3, 4)])
def test_another_number_of_columns_is_named(columns, read_as, frames, facts, tmp_path):
    points = next(iter(frames.values()))[0][:8700]
    extra = np.random.default_rng(0).integers(0, 64, (len(points), 6))
    path = tmp_path / "000000.bin"
    np.column_stack([points[:, :3], extra])[:, :columns].astype(np.float32).tofile(path)
    misread = np.fromfile(path, dtype=np.float32).reshape(-1, read_as)[:, :3]
    low, high = np.quantile(misread, (0.05, 0.95), axis=0)
    (problem,) = clouds.check_columns([replace(facts[0], low=low, high=high)], [path], read_as)
    assert problem.level == Level.BREAKS and f"As {columns}" in problem.message


@pytest.mark.parametrize(("top", "scale"), [(255.0, "0.00392157"), (100.0, "0.00392157"), (40000.0, "1.5259e-05")])
def test_intensity_of_another_scale_gets_its_factor(facts, top, scale):
    (problem,) = clouds.check_intensity([replace(f, intensity=(0.0, top)) for f in facts])
    assert problem.level == Level.HARMS and problem.message.endswith(f"set INTENSITY_SCALE {scale}")


def test_intensity_that_is_missing_mixed_or_no_intensity_is_told(facts):
    (problem,) = clouds.check_intensity([replace(f, intensity=(0.0, 0.0)) for f in facts])
    assert problem.level == Level.NOTE and "was it not recorded" in problem.message
    (problem,) = clouds.check_intensity([replace(facts[0], intensity=(0.0, 255.0)), *facts[1:]])
    assert "two scales: up to 255 in 000000" in problem.message
    (problem,) = clouds.check_intensity([replace(f, intensity=(-1.0, 1.5)) for f in facts])
    assert "another quantity" in problem.message


def test_ground_outside_the_range_of_two_heights_or_apart_from_the_boxes_is_found(facts, with_boxes):
    (problem,) = clouds.check_ground(facts, [-40, -40, 1, 40, 40, 4])
    assert problem.level == Level.BREAKS and "outside POINT_CLOUD_RANGE's 1 to 4" in problem.message
    (problem,) = clouds.check_ground([replace(facts[0], ground=-1.7, boxes=facts[0].boxes), *facts[1:]])
    assert problem.level == Level.NOTE and "several mounting heights" in problem.message

    def floating(rows):
        rows[:, 2] += 1.73
        return rows

    (problem,) = clouds.check_ground(with_boxes(floating))
    assert problem.level == Level.HARMS and "1.7" in problem.message and "above the ground" in problem.message


def test_repeated_clouds_and_frames_in_two_splits_are_found(facts):
    (problem,) = clouds.check_duplicates([replace(facts[1], digest="000000"), facts[0], *facts[2:]])
    assert problem.level == Level.NOTE and "000001 = 000000" in problem.message
    (problem,) = clouds.check_duplicates([replace(facts[0], splits=("train", "val")), *facts[1:]])
    assert (problem.check, problem.level) == ("leaks", Level.HARMS) and "000000" in problem.message
    same = [replace(facts[0], splits=("val",)), replace(facts[1], digest="000000"), *facts[2:]]
    assert [p.check for p in clouds.check_duplicates(same)] == ["duplicates", "leaks"]
