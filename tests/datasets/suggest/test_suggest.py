"""Suggested values against arithmetic, for data whose right values are known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from pcdet.config import load_config
from pcdet.datasets.checks.facts import READINGS, FrameFacts
from pcdet.datasets.checks.model import check_grid
from pcdet.datasets.suggest.anchors import anchors_for, cluster_sizes
from pcdet.datasets.suggest.values import (
    boxes_of,
    fit_span,
    learned,
    span,
    suggest_grid,
    suggest_intensity,
    suggest_sampling,
    widened,
)
from pcdet.datasets.suggest.yaml_text import dump, part

MODELS = [
    "custom_models/pv_rcnn", "custom_models/PartA2", "custom_models/centerpoint", "kitti_models/pointpillar",
    "kitti_models/second_iou",
]  # fmt: skip


def boxes_at(xy: np.ndarray, size=(4.0, 2.0, 1.5), bottom: float = 0.0) -> np.ndarray:
    """(M, 7) boxes of one size on a floor."""
    rest = np.broadcast_to([bottom + size[2] / 2, *size, 0.0], (len(xy), 5))
    return np.column_stack([xy, rest])


def frame(names: list[str], points: int = 20, splits=("train",)) -> FrameFacts:
    """A frame that holds these objects, each with so many points."""
    boxes = boxes_at(np.zeros((len(names), 2)))
    inside = np.full((len(names), len(READINGS)), points)
    return FrameFacts("0", splits, names=np.array(names), boxes=boxes, inside=inside)


def test_one_size_is_one_anchor_and_two_kinds_are_two():
    rng = np.random.default_rng(0)
    cars = boxes_at(np.zeros((40, 2)), (4.0, 1.8, 1.5), -1.7) * rng.normal(1, [0, 0, 0, 0.05, 0.05, 0.05, 0], (40, 7))
    lorries = boxes_at(np.zeros((20, 2)), (12.0, 2.5, 3.5), -1.7)
    one = anchors_for("Vehicle", cars)
    assert one.sizes == pytest.approx(np.array([[4.0, 1.8, 1.5]]), abs=0.1) and one.thresholds == (0.6, 0.45)
    two = anchors_for("Vehicle", np.concatenate([cars, lorries]))
    assert two.sizes == pytest.approx(np.array([[4.0, 1.8, 1.5], [12.0, 2.5, 3.5]]), abs=0.1)
    assert two.bottom == pytest.approx(-1.7, abs=0.02) and two.overlap > 0.9
    assert anchors_for("Pedestrian", boxes_at(np.zeros((9, 2)), (0.8, 0.6, 1.7))).thresholds == (0.5, 0.35)


def test_clusters_are_medians_of_their_own():
    sizes = np.array([[1.0, 1, 1], [1.0, 1, 1], [1.2, 1, 1], [8.0, 2, 2], [9.0, 2, 2], [10.0, 2, 2]])
    assert cluster_sizes(sizes, 2) == pytest.approx(np.array([[1.0, 1, 1], [9, 2, 2]]))


def test_spans_by_hand():
    assert span(2.0, 70.0) == (0.0, 70.0)
    assert span(-0.5, 70.0) == (0.0, 70.0)
    assert span(-40.0, 50.0) == (-50.0, 50.0)
    assert span(-10.0, 50.0) == (-10.0, 50.0)
    assert widened([(-80.0, 80.0), (-10.0, 20.0)]) == [(-80.0, 80.0), (-35.0, 45.0)]
    # 0.1 m and a multiple of 16: steps of 1.6 m.
    assert fit_span(-50.0, 50.0, 0.1, 16) == (-50.4, 50.4)
    assert fit_span(0.0, 70.0, 0.1, 16) == (0.0, 70.4)
    assert fit_span(-10.04, 50.0, 0.1, 16) == (-10.1, 50.7)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("reach", [(0, 8, -8, 8), (1, 71, -38, 38), (-75, 75, -70, 70), (-200, 180, -30, 200)])
def test_any_range_fits_the_strides_and_holds_the_boxes(name, reach):
    model = load_config(f"cfgs/{name}.yaml").settings.MODEL
    x, y = np.linspace(*reach[:2], 30), np.linspace(*reach[2:], 30)
    boxes = boxes_at(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2), bottom=-1.8)
    grid = suggest_grid(boxes, model)
    assert check_grid(grid.limits, grid.voxel_size, model) == []
    inside = ((boxes[:, :3] >= grid.limits[:3]) & (boxes[:, :3] <= grid.limits[3:])).all(axis=1)
    assert inside.mean() >= 0.9
    assert grid.limits[2] <= -2.3 and grid.limits[5] - grid.limits[2] >= 4


def test_a_grid_like_kittis_comes_out_for_boxes_like_kittis():
    boxes = boxes_at(np.array([[3.0, 0], [66, 30], [30, -30], [40, 37]]), bottom=-1.7)
    grid = suggest_grid(boxes, load_config("cfgs/kitti_models/second.yaml").settings.MODEL)
    assert (grid.limits[0], grid.voxel_size, grid.multiple) == (0.0, [0.05, 0.05, 0.1], 16)


def test_rare_classes_are_left_out_and_none_is_an_error():
    facts = [frame(["Car"] * 6 + ["Tram"])]
    assert learned(facts) == ({"Car": 6}, {"Tram": 1})
    with pytest.raises(ValueError, match=r"tools/check_data\.py"):
        boxes_of(facts, [])


def test_groups_fill_up_rare_classes_as_far_as_there_are_objects():
    facts = [frame(["Car"] * 12 + ["Bus"]) for _ in range(4)]
    facts.append(frame(["Car"] * 100, splits=("val",)))
    facts.append(replace(frame(["Bike"], points=2), frame="1"))
    cars, buses = suggest_sampling(facts, ["Car", "Bus", "Bike"])  # no bike has five points
    assert (cars.name, cars.wanted, cars.usable, cars.mean) == ("Car", 10, 48, 48 / 5)
    assert (buses.name, buses.wanted, buses.usable) == ("Bus", 4, 4)


def test_the_factor_of_intensities():
    facts = [replace(frame([]), intensity=(0.0, 1.0)), replace(frame([]), intensity=(0.0, 0.4))]
    assert suggest_intensity(facts) == (1.0, 1.0)
    assert suggest_intensity([replace(f, intensity=(0.0, 196.0)) for f in facts]) == (196.0, float(f"{1 / 255:.8g}"))
    assert suggest_intensity([frame([])]) == (None, 1.0)


def test_yaml_is_written_key_by_key_below_its_reason_and_without_aliases(tmp_path: Path):
    same = [0, 1.57]
    text = part({"A": "b", "C": [{"x": same}, {"x": same}]}, "why it is so", 2)
    assert text.splitlines()[:2] == ["  # why it is so", "  A: b"] and "&" not in text
    assert yaml.safe_load(text) == {"A": "b", "C": [{"x": same}, {"x": same}]}
    assert dump("K", [1, 2], 80) == "K: [1, 2]\n" and part({}, "nothing") == ""
