"""The analysis of detections, by hand."""

import json
import math

import numpy as np
import pytest

from pcdet.evaluation.analysis import analyse, kitti_objects, lidar_objects, outcomes
from pcdet.structures.outcomes import NEUTRAL, RIGHT, WRONG


def frame(annos, cars, *, depth=20.0, **more):
    """Cars 20 m apart at one depth; further arrays replace those of the frame."""
    out = annos(["Car"] * len(cars), x=cars)
    out["location"][:, 2] = depth
    return out | {key: np.array(value, dtype=float) for key, value in more.items()}


def test_bands_count_their_own_objects_and_forgive_detections_of_others(annos):
    """41 near cars found, 41 far ones missed: AP 100 near, 0 far; a false alarm far away costs nothing near."""
    truth = [frame(annos, [0.0]) for _ in range(41)] + [frame(annos, [0.0], depth=60.0) for _ in range(41)]
    found = [frame(annos, [0.0], score=[0.5])] * 41 + [frame(annos, [9.0], depth=60.0, score=[0.9])] * 41
    rows = {row.band: row for row in analyse(kitti_objects(truth, found), ["Car"]).classes[0].bands}
    # Depth 20 lies in 20-40m: bands hold their lower border.
    assert rows["20-40m"].ap == 100 and (rows["20-40m"].ground_truths, rows["20-40m"].detections) == (41, 41)
    assert rows["40+m"].ap == 0 and rows["40+m"].ground_truths == 41 and rows["40+m"].found == 0
    assert rows["0-20m"].ap is None and rows["0-20m"].ground_truths == 0
    assert rows["all"].ap == pytest.approx(100 * 0.5 * 20 / 40) and rows["all"].found == 41


def test_bands_by_occlusion_and_points(annos):
    """What is too occluded for KITTI is measured under its own level; points are the caller's."""
    truth = [frame(annos, [0.0, 20.0, 40.0], occluded=[0, 2, 3])] * 41
    found = [frame(annos, [0.0, 20.0, 40.0], score=[0.9, 0.8, 0.7])] * 41
    objects = kitti_objects(truth, found, points=[np.array([3, 50, 500])] * 41)
    (cars,) = analyse(objects, ["Car"]).classes
    rows = {row.band: row for row in cars.bands}
    assert rows["all"].ground_truths == 82 and cars.labelled == 123 and cars.removed["too occluded"] == 41
    for name in ("fully visible", "largely occluded", "unknown"):
        assert (rows[name].ground_truths, rows[name].found) == (41, 41)
    assert rows["partly occluded"].ap is None
    assert (rows["0-4pts"].ground_truths, rows["20-99pts"].ground_truths, rows["100+pts"].ground_truths) == (41, 41, 0)
    with pytest.raises(ValueError, match="2 point counts for 3 ground truths"):
        kitti_objects(truth[:1], found[:1], points=[np.array([1, 2])])


def test_heading_errors(annos):
    """By 10 and by 170 degrees: a mean of 90, of 10 where front and back do not matter; half are flipped."""
    truth = [annos(["Car"] * 2, rotation=3.1)]
    found = [annos(["Car"] * 2)]
    found[0]["rotation_y"] = 3.1 + np.radians([10.0, -170.0])
    for side in (truth, found):
        side[0]["dimensions"] = np.tile([3.0, 1.5, 2.9], (2, 1))
    error = analyse(kitti_objects(truth, found), ["Car"]).classes[0].orientation
    assert error.matches == 2 and error.flipped == 0.5
    np.testing.assert_allclose([error.mean, error.median, error.axis_mean], [90, 90, 10], atol=1e-9)


def test_calibration(annos):
    """Of four detections of score 0.75 three are right; one of a score of exactly 1 lies in the last bin."""
    truth = [annos(["Car"] * 5)]
    found = [annos(["Car"] * 5, x=[0.0, 20.0, 40.0, 70.0, 80.0], scores=[0.75, 0.75, 0.75, 0.75, 1.0])]
    result = analyse(kitti_objects(truth, found), ["Car"])
    bins = result.classes[0].calibration
    assert (bins[7].detections, bins[7].right, bins[7].mean_score) == (4, 3, 0.75)
    assert (bins[9].detections, bins[9].right) == (1, 1) and sum(b.detections for b in bins) == 5
    assert result.as_json()["classes"]["Car"]["calibration"]["error"] == 0
    found[0]["score"] = found[0]["score"] * 3 - 1
    logits = analyse(kitti_objects(truth, found), ["Car"])
    assert logits.classes[0].calibration is None and "n/a" in logits.text


def test_confusions_by_hand(annos):
    """A car called a car, one called a pedestrian, one missed; one false pedestrian; the low one is left out."""
    truth, found = annos(["Car"] * 4), annos(["Car", "Pedestrian", "Pedestrian", "Car"], x=[0.0, 20.0, 200.0, 60.0])
    truth["bbox"][3] = [0, 0, 50, 20]
    result = analyse(kitti_objects([truth], [found]), ["Car", "Pedestrian"], score=0.4)
    assert result.names == ["Car", "Pedestrian", "nothing"]
    assert result.confusion.tolist() == [[1, 1, 1], [0, 0, 0], [0, 1, 0]]
    low = analyse(kitti_objects([truth], [found]), ["Car", "Pedestrian"], score=0.99)
    assert low.confusion.sum() == 3 and low.confusion[0].tolist() == [1, 0, 2]


def test_outcomes_are_those_of_the_metric(annos):
    """Hit, false alarm, on a van, below the score; found, missed, and a van that nobody asks for."""
    truth = annos(["Car", "Van", "Car"])
    found = annos(["Car"] * 4, x=[0.0, 20.0, 90.0, 40.0], scores=[0.9, 0.8, 0.7, 0.1])
    (one, two) = outcomes(kitti_objects([truth, annos()], [found, annos(["Car"])]), ["Car"], [0.7], 0.3)
    assert one.found.tolist() == [RIGHT, NEUTRAL, WRONG, NEUTRAL] and one.truth.tolist() == [RIGHT, NEUTRAL, WRONG]
    assert two.found.tolist() == [WRONG] and len(two.truth) == 0


def test_every_number_has_its_counts_and_nothing_is_nan(annos):
    truth = [annos(["Car"] * 2)] * 30
    result = analyse(kitti_objects(truth, [annos()] * 30), ["Car", "Pedestrian"])
    assert "nan" not in result.text.lower() and "n/a" in result.text
    assert "Car, IoU > 0.70: 60 ground truths; 0 detections" in result.text
    assert json.loads(json.dumps(result.as_json(), allow_nan=False))["classes"]["Pedestrian"]["bands"][0]["ap"] is None
    assert result.classes[0].bands[0].ap == 0 and result.classes[0].orientation.mean is None


def test_lidar_annotations(annos):
    box = [10.0, 0, 0, 4, 2, 1.5, 0.3]
    truth = [{"name": np.array(["Car", "Car"]), "gt_boxes_lidar": np.array([box, [50.0, *box[1:]]])}]
    found = [
        {"name": np.array(["Car"]), "boxes_lidar": np.array([[*box[:6], 0.3 + math.pi]]), "score": np.array([0.9])}
    ]
    objects = lidar_objects(truth, found, ignored=[np.array([False, True])], why_ignored="outside")
    (cars,) = analyse(objects, ["Car"]).classes
    assert cars.removed == {"outside": 1} and cars.bands[0].ground_truths == cars.bands[0].found == 1
    assert cars.orientation.flipped == 1 and cars.bands[0].exact == 100
    assert not any("pts" in row.band or "occluded" in row.band for row in cars.bands)
