"""Each check of boxes finds a planted fault, and none accuses frames without one."""

from dataclasses import replace

import numpy as np
import pytest

from pcdet.datasets.checks import Level, boxes
from pcdet.datasets.checks.facts import readings
from pcdet.structures.box_convention import BoxConvention

RANGE = [-40.0, -40.0, -2.0, 40.0, 40.0, 4.0]


def test_frames_without_a_fault_are_not_accused(facts):
    checks = (boxes.check_emptiness, boxes.check_headings, boxes.check_origin, boxes.check_sizes)
    assert [p for check in checks for p in check(facts)] == []
    assert boxes.check_range(facts, RANGE) == []


def heading(change):
    def apply(rows):
        rows[:, 6] = change(rows[:, 6])
        return rows

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: -a, "mirrored (clockwise headings)"),
        (lambda a: a + np.pi / 2, "turned by 90 degrees"),
        (lambda a: np.pi / 2 - a, "mirrored and turned by 90 degrees"),
    ],
)
def test_headings_of_another_convention_are_found_by_the_points(with_boxes, change, words):
    (problem,) = boxes.check_headings(with_boxes(heading(change)))
    assert problem.level == Level.BREAKS and f"hold more points {words}:" in problem.message


def test_a_turn_by_half_is_no_fault_since_it_holds_the_same_points(with_boxes):
    assert boxes.check_headings(with_boxes(heading(lambda a: a + np.pi))) == []


def test_some_turned_boxes_are_told_by_their_frames(facts, with_boxes):
    turned = with_boxes(heading(lambda a: a + np.pi / 2))
    (problem,) = boxes.check_headings([*facts[:3], turned[3]])
    assert problem.level == Level.HARMS and problem.frames == ("000003",) and 0.2 < problem.share < 0.3


def test_bottoms_taken_for_centres_are_found(with_boxes):
    def sunk(rows):
        rows[:, 2] -= rows[:, 5] / 2
        return rows

    (problem,) = boxes.check_origin(with_boxes(sunk))
    assert problem.level == Level.BREAKS and "origin: bottom" in problem.message


def test_boxes_in_other_axes_are_found_and_told(with_boxes):
    def camera_like(rows):
        rows[:, [0, 1]] = np.column_stack([-rows[:, 1], rows[:, 0]])
        rows[:, 6] += np.pi / 2
        return rows

    (problem,) = boxes.check_emptiness(with_boxes(camera_like))
    assert problem.level == Level.BREAKS and "at (y, -x)" in problem.message


def test_one_empty_box_is_a_note_and_empty_ones_everywhere_break_training(facts, with_boxes):
    def one_in_the_air(rows):
        rows[0, 2] += 30
        return rows

    def all_in_the_air(rows):
        rows[:, 2] += 30
        return rows

    (problem,) = boxes.check_emptiness([*facts[:3], with_boxes(one_in_the_air)[3]])
    assert (problem.level, problem.frames) == (Level.NOTE, ("000003",)) and "1 of 36 boxes" in problem.message
    (problem,) = boxes.check_emptiness(with_boxes(all_in_the_air))
    assert problem.level == Level.BREAKS and "belong together" in problem.message


def test_sizes_in_another_order_are_found(with_boxes):
    def width_first(rows):
        rows[:, [3, 4]] = rows[:, [4, 3]]
        return rows

    found = boxes.check_sizes(with_boxes(width_first))
    assert any("Vehicle" in p.message and "order: wlh" in p.message for p in found)
    assert any(p.message.startswith("Cyclist measures 0.") for p in found)


def test_sizes_in_centimetres_and_one_odd_size_are_found(facts, with_boxes):
    def centimetres(rows):
        rows[:, 3:6] *= 100
        return rows

    def one_is_long(rows):
        rows[0, 3] *= 5
        return rows

    found = boxes.check_sizes(with_boxes(centimetres))
    assert {p.message.split()[0] for p in found if p.level == Level.HARMS} == {"Vehicle", "Pedestrian", "Cyclist"}
    (problem,) = boxes.check_sizes([*facts[:3], with_boxes(one_is_long)[3]])
    assert (problem.level, problem.frames) == (Level.NOTE, ("000003",))


def test_boxes_outside_the_range_are_counted_by_class(facts):
    (problem,) = boxes.check_range(facts, [-40.0, -40.0, -2.0, 10.0, 40.0, 4.0])
    outside = sum((f.boxes[:, 0] > 10).sum() for f in facts)
    assert problem.level == Level.HARMS and problem.message.startswith(f"{outside} of 36 boxes")
    (problem,) = boxes.check_range(facts, [100.0, 100.0, -2.0, 140.0, 140.0, 4.0])
    assert problem.level == Level.BREAKS
    assert boxes.check_range(facts, [100.0, 100.0, -2.0, 140.0, 140.0, 4.0], ["Tram"]) == []


def test_frames_without_boxes_have_no_faulty_boxes(facts):
    none = [replace(f, names=f.names[:0], boxes=f.boxes[:0], inside=f.inside[:0]) for f in facts]
    checks = (boxes.check_emptiness, boxes.check_headings, boxes.check_origin, boxes.check_sizes)
    assert [p for check in checks for p in check(none)] == [] and boxes.check_range(none, RANGE) == []


@pytest.mark.parametrize("convention", [BoxConvention(), BoxConvention("bottom", True, "wlh", "deg", "-y")])
@pytest.mark.parametrize("reading", [boxes.TURNED, boxes.MIRRORED, boxes.MIRRORED_TURNED, boxes.HIGHER, boxes.LOWER])
def test_the_advised_convention_gives_the_boxes_of_the_reading(reading, convention):
    written = np.random.default_rng(0).uniform(1, 3, (20, 7))
    wanted = readings(convention.to_lidar(written))[reading]
    advised = boxes.convention_of(reading, convention)
    possible = {boxes.HIGHER: convention.origin == "center", boxes.LOWER: convention.origin == "bottom"}
    assert (advised is not None) == possible.get(reading, True)
    if advised is not None:
        np.testing.assert_allclose(advised.to_lidar(written), wanted, atol=1e-9)


def test_advice_names_what_differs_from_the_default_and_stays_silent_without_the_key():
    text = boxes.advice(boxes.MIRRORED_TURNED, BoxConvention(unit="deg"))
    assert text == "; set BOX_CONVENTION {clockwise: True, unit: deg, zero: y} (or zero: -y, if all face back)"
    assert boxes.advice(boxes.MIRRORED, None) == ""
