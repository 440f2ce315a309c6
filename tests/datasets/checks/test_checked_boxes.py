"""Each check of boxes finds a planted fault, and none accuses frames without one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pcdet.datasets.checks import Level, boxes
from pcdet.datasets.checks.facts import measure, readings
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


def raised(rows):
    rows[:, 2] += rows[:, 5] / 2
    return rows


def test_centres_taken_for_bottoms_are_found(with_boxes):
    (problem,) = boxes.check_origin(with_boxes(raised), BoxConvention(origin="bottom"))
    assert problem.level == Level.BREAKS and "half their height lower (origin: center)" in problem.message


def test_dense_ground_below_sparse_objects_does_not_speak_against_their_origin():
    """A box half its height lower would hold 200 points of the ground, as labelled it holds 20 of the object."""
    rng = np.random.default_rng(0)
    box = np.array([10.0, 0, 0.8, 4, 1.8, 1.6, 0])
    row = np.tile(box, (4, 1)) + np.arange(4)[:, None] * [8.0, 0, 0, 0, 0, 0, 0]
    ground = [rng.uniform(-0.5, 0.5, (200, 3)) * [4, 1.8, 0.05] + b[:3] * [1, 1, 0] for b in row]
    objects = [rng.uniform(-0.49, 0.49, (20, 3)) * b[3:6] + b[:3] for b in row]
    found = measure("a", ("train",), Path("none"), np.concatenate([*ground, *objects]), 0, ["Car"] * 4, row)
    assert (found.inside[:, boxes.LOWER] > 100).all() and boxes.check_origin([found]) == []


def test_width_before_length_is_told_from_a_quarter_turn(with_boxes):
    """Both hold the points of a turned box; only boxes that are wider than long have their sizes exchanged."""

    def width_first(rows):
        rows[:, [3, 4]] = rows[:, [4, 3]]
        return rows

    (problem,) = boxes.check_headings(with_boxes(width_first), BoxConvention(unit="deg"))
    assert problem.level == Level.BREAKS and "{order: wlh, unit: deg} (or zero: -x" in problem.message


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

    for convention, advice in (
        (BoxConvention(), "set BOX_CONVENTION {order: wlh}?"),
        (BoxConvention(order="hwl"), "set BOX_CONVENTION {order: hlw}?"),
        (None, "are the two exchanged?"),
    ):
        found = boxes.check_sizes(with_boxes(width_first), convention)
        assert any("Vehicle are wider than long: " in p.message and p.message.endswith(advice) for p in found)
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
        # Of boxes that are wider than long the advice gives the same boxes, along their longer side.
        wide = boxes.convention_of(reading, convention, wide=True).to_lidar(written)
        swap = reading in (boxes.TURNED, boxes.MIRRORED_TURNED)
        turned = wanted[:, [0, 1, 2, 4, 3, 5, 6]] - [*[0] * 6, np.pi / 2] if swap else wanted
        np.testing.assert_allclose(np.cos(2 * (wide - turned)[:, 6]), 1, atol=1e-9)
        np.testing.assert_allclose(wide[:, :6], turned[:, :6], atol=1e-9)


def test_advice_names_what_differs_from_the_default_and_stays_silent_without_the_key():
    text = boxes.advice(boxes.MIRRORED_TURNED, BoxConvention(unit="deg"))
    assert text == "; set BOX_CONVENTION {clockwise: True, unit: deg, zero: y} (or zero: -y, if all face back)"
    assert boxes.advice(boxes.MIRRORED, None) == ""
