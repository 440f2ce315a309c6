"""KITTI's metric against numbers worked out by hand."""

import math

import numpy as np
import pytest

from pcdet.evaluation.classes import min_overlaps_of
from pcdet.evaluation.kitti import average_precisions, evaluate
from pcdet.evaluation.kitti.precision import exact_average_precision, score_thresholds

CLASSES = ["Car", "Pedestrian", "Cyclist"]


def cars(annos, count, **kwargs):
    """``count`` frames with one car each; scores fall from frame to frame."""
    return [annos(["Car"], scores=[1 - f / 1000], **kwargs) for f in range(count)]


def entry(entries, metric, name="Car", loose=False):
    return next(e for e in entries if (e.metric, e.class_name, e.loose) == (metric, name, loose))


@pytest.mark.parametrize(
    "count, r11, r40",
    [
        (1, 9.0909, 0), (2, 9.0909, 2.5), (5, 18.1818, 10), (10, 27.2727, 22.5), (20, 45.4545, 47.5),
        (40, 90.9091, 97.5), (41, 100, 100),
    ],
)  # fmt: skip
def test_d1_perfect_detections_of_few_ground_truths(annos, count, r11, r40):
    """The sampling of recall is KITTI's; beside it stands the exact value, and a warning says so."""
    frames = cars(annos, count)
    report = evaluate(frames, frames, ["Car"])
    for metric in ("image", "bev", "3d", "aos"):
        assert report.metrics[f"Car_{metric}/easy_R11"] == pytest.approx(r11, abs=1e-4)
        assert report.metrics[f"Car_{metric}/easy_R40"] == pytest.approx(r40, abs=1e-9)
        assert report.metrics.get(f"Car_{metric}/easy_exact") == (100 if count < 41 else None)
    assert (f"WARNING: Car has {count}/{count}/{count} ground truths; below 41" in report.text) == (count < 41)


@pytest.mark.parametrize("false_score, precision", [(0.1, 1.0), (2.0, 0.75)])
def test_d9_a_staircase(annos, false_score, precision):
    """80 ground truths, 60 found, 20 false: recall ends at 0.75, position 30 of 40, the eighth of eleven.

    Worse-scored false ones cost nothing; better-scored ones make 60 of 80 the best precision everywhere.
    """
    truth = cars(annos, 80)
    found = [annos(["Car"], x=[0.0 if f < 60 else 9.0], scores=[1 - f / 1000]) for f in range(80)]
    for frame in found[60:]:
        frame["score"][:] = false_score
    metrics = evaluate(truth, found, ["Car"]).metrics
    for tag in ("Car_image", "Car_bev", "Car_3d", "Car_3d_loose"):
        assert metrics[f"{tag}/moderate_R40"] == pytest.approx(100 * precision * 30 / 40)
        assert metrics[f"{tag}/moderate_R11"] == pytest.approx(100 * precision * 8 / 11)


def test_scores_kept_for_the_recall_positions():
    """With fewer ground truths than positions every score is kept; of 80 the first, then every second."""
    scores = np.array([0.2, 0.9, 0.5, 0.7])
    np.testing.assert_array_equal(score_thresholds(scores, 4), [0.9, 0.7, 0.5, 0.2])
    np.testing.assert_array_equal(score_thresholds(np.arange(80, 0, -1.0), 80), [80, *range(79, 0, -2)])
    assert len(score_thresholds(np.zeros(0), 0)) == 0


def test_exact_average_precision_by_hand():
    """Found, false, found of four: half the recall at precision 1, then 2/3 (only two are ever found)."""
    assert exact_average_precision(np.array([1, 2 / 3]), np.array([1.0, 2.0]), 4) == pytest.approx(25 * (1 + 2 / 3))
    assert exact_average_precision(np.zeros(0), np.zeros(0), 4) == 0.0


def test_a1_ground_truths_as_detections_reach_the_image_metric_whatever_the_yaw(annos):
    """Coincident rotated boxes overlap fully: 3-D AP equals 2-D AP."""
    frames = [
        annos(["Car"], x=[-48.0], rotation=float(r), dims=(6.5, 1.9, 2.7), bbox=(600, 100, 700, 200))
        for r in np.arange(-math.pi, math.pi, 0.01)
    ]
    metrics = evaluate(frames, frames, ["Car"]).metrics
    assert metrics["Car_3d/hard_R40"] == metrics["Car_bev/hard_R40"] == metrics["Car_image/hard_R40"] == 100


def test_d2_without_image_boxes_all_is_ignored_and_said_so(annos):
    frames = cars(annos, 50, bbox=(0, 0, 0, 0))
    report = evaluate(frames, frames, CLASSES)
    assert "all 50 ground truths of Car ignored by min height" in report.text
    assert report.metrics["Car_3d/moderate_R40"] == 0
    only_lidar = evaluate(frames, frames, ["Car"], lidar_only=True)
    assert only_lidar.metrics["Car_3d/easy_R40"] == only_lidar.metrics["Car_bev/hard_R11"] == 100
    assert not any("image" in tag or "aos" in tag for tag in only_lidar.metrics) and "min height" not in only_lidar.text


def test_d2_detections_without_image_boxes(annos):
    truth, found = cars(annos, 50), cars(annos, 50, bbox=(0, 0, 0, 0))
    report = evaluate(truth, found, ["Car"])
    assert report.metrics["Car_3d/moderate_R40"] == 0 and "no detection of Car counts (or all are lower" in report.text
    assert evaluate(truth, found, ["Car"], lidar_only=True).metrics["Car_3d/moderate_R40"] == 100


def test_d3_frames_without_detections_or_ground_truths(annos):
    """Of 41 frames one has no detection; a false positive in an empty frame costs precision as any other."""
    truth, found = cars(annos, 41), cars(annos, 41)
    found[40] = annos()
    truth += [annos(), annos()]
    found += [annos(), annos(["Car"], scores=[2.0])]
    found_40 = 40 / 41  # 40 true ones below one false
    metrics = evaluate(truth, found, ["Car"]).metrics
    assert metrics["Car_3d/easy_R40"] == pytest.approx(100 * found_40 * 39 / 40)
    assert all(math.isfinite(v) for v in metrics.values())


def test_levels_without_ground_truth_are_not_taken_for_levels_with_few(annos):
    truth = [annos(["Car"]) for _ in range(41)]
    for frame in truth:
        frame["occluded"][:] = 2
    text = evaluate(truth, cars(annos, 41), ["Car"]).text
    assert "0/0/41" in text and "below 41" not in text


def test_d3_no_detections_at_all(annos):
    report = evaluate(cars(annos, 41), [annos() for _ in range(41)], CLASSES)
    assert set(report.metrics.values()) == {0.0} and "no detection of Car counts" in report.text
    assert "n/a" in report.text and "nan" not in report.text.lower()
    assert entry(average_precisions(cars(annos, 1), [annos()], ["Car"]), "3d").scores is None


def test_d5_no_ground_truth_at_all(annos):
    report = evaluate([annos(), annos(["DontCare"])], cars(annos, 2), CLASSES)
    assert report.metrics == {}
    assert report.text == ("no ground truth of Car, Pedestrian, Cyclist in 2 frames, metrics skipped (2 detections)")


def test_d6_classes_that_kitti_does_not_have(annos):
    """A default overlap, or one's own; what cannot be evaluated is said before anything is computed."""
    assert min_overlaps_of(["Bus", "car", "Truck"]) == [(0.5, 0.25), (0.7, 0.5), (0.7, 0.5)]
    frames = [annos(["Bus"]) for _ in range(41)]
    # Of 4 m, 1 m apart: an overlap of 3/5.
    found = [annos(["Bus"], x=[1.0], scores=[0.5]) for _ in range(41)]
    assert evaluate(frames, found, ["Bus"]).metrics["Bus_3d/easy_R40"] == 100
    given = evaluate(frames, found, ["Bus"], min_overlaps={"bus": (0.65, 0.5)})
    assert given.metrics["Bus_3d/easy_R40"] == 0 and given.metrics["Bus_3d_loose/easy_R40"] == 100
    with pytest.raises(ValueError, match="must be at least one"):
        min_overlaps_of([])
    with pytest.raises(ValueError, match="differ in more than case"):
        min_overlaps_of(["Car", "car"])
    with pytest.raises(ValueError, match="of bus must lie in"):
        min_overlaps_of(["Bus"], {"Bus": (70, 50)})


def test_d7_dont_care_forgives_in_the_image_only(annos):
    """41 found cars and a better-scored detection inside a DontCare region, which stands first (C1)."""
    truth, found = [], []
    for f in range(41):
        frame = annos(["DontCare", "Car"], x=[60.0, 0.0])
        frame["location"][0] = -1000
        truth.append(frame)
        found.append(annos(["Car", "Car"], x=[60.0, 0.0], scores=[2.0, 1 - f / 1000]))
    metrics = evaluate(truth, found, ["Car"]).metrics
    assert metrics["Car_image/easy_R40"] == 100
    assert metrics["Car_3d/easy_R40"] == metrics["Car_bev/easy_R40"] == 50


def test_a_detection_on_the_sentinel_of_dont_care_overlaps_nothing(annos):
    truth, found = annos(["Car", "DontCare"]), annos(["Car", "Car"], scores=[0.5, 0.9])
    for frame in (truth, found):
        frame["location"][1], frame["dimensions"][1] = -1000, -1
    scores = entry(average_precisions([truth] * 41, [found] * 41, ["Car"]), "bev").scores
    assert scores[0].r40 == 50  # a false one above every true one


def test_d10_only_the_order_of_scores_matters(annos):
    rng = np.random.default_rng(0)
    truth = [annos(["Car", "Car"]) for _ in range(30)]
    found = [annos(["Car"] * 3, x=[0.0, 20.2, 9.0], scores=rng.random(3).round(1)) for _ in range(30)]
    logits = [{**f, "score": np.log(f["score"] + 0.01) * 7 - 1e8} for f in found]
    first, second = evaluate(truth, found, ["Car"]), evaluate(truth, logits, ["Car"])
    assert first.metrics == second.metrics and 0 < first.metrics["Car_3d/easy_R40"] < 100


@pytest.mark.parametrize("order, ap", [((0, 1), 100), ((1, 0), 0)])
def test_d10_of_equal_scores_the_first_in_the_frame_is_taken(annos, order, ap):
    """A car and, on the same place, a detection too low to count: the one that stands first is the match."""
    pair = annos(["Car", "Pedestrian"], x=[0.0, 0.0], scores=[0.5, 0.5])
    pair["bbox"][1] = [100, 100, 200, 110]
    found = {key: value[list(order)] for key, value in pair.items()}
    assert evaluate([annos(["Car"])] * 41, [found] * 41, ["Car"]).metrics["Car_3d/easy_R40"] == ap


@pytest.mark.parametrize("width, ap", [(50, 0), (50.1, 100)])
def test_a_match_needs_more_than_the_minimum_overlap(annos, width, ap):
    """A pedestrian found with half the width overlaps by exactly 0.5."""
    truth, found = annos(["Pedestrian"]), annos(["Pedestrian"], bbox=(100, 100, 100 + width, 200))
    assert evaluate([truth] * 41, [found] * 41, ["Pedestrian"]).metrics["Pedestrian_image/easy_R40"] == ap


def test_d11_unknown_alpha_switches_orientation_off(annos):
    truth, found = cars(annos, 41), cars(annos, 41)
    found[7]["alpha"][:] = -10
    entries = average_precisions(truth, found, ["Car"])
    assert entry(entries, "aos").scores is None and entry(entries, "3d").scores[0].r40 == 100
    report = evaluate(truth, found, ["Car"])
    assert not any("aos" in tag for tag in report.metrics) and "aos  AP" not in report.text
    row = next(line for line in report.text.splitlines() if line.startswith("Car") and " aos " in line)
    assert row.count("n/a") == 6


def test_orientation_weighs_by_half_of_one_plus_cosine(annos):
    """All turned by 60 degrees: (1 + 1/2) / 2."""
    metrics = evaluate(cars(annos, 41), cars(annos, 41, alpha=math.pi / 3), ["Car"]).metrics
    assert metrics["Car_aos/easy_R40"] == pytest.approx(75) and metrics["Car_image/easy_R40"] == 100


@pytest.mark.parametrize(
    "key, value, counted",
    [
        ("bbox", [0, 0, 60, 40], "0/1/1"), ("bbox", [0, 0, 60, 40.01], "1/1/1"), ("bbox", [0, 0, 60, 25], "0/0/0"),
        ("occluded", 1, "0/1/1"), ("occluded", 2, "0/0/1"), ("occluded", 3, "0/0/0"),
        ("truncated", 0.15, "1/1/1"), ("truncated", 0.16, "0/1/1"), ("truncated", 0.5, "0/0/1"),
        ("truncated", 0.51, "0/0/0"),
    ],
)  # fmt: skip
def test_which_ground_truths_count(annos, key, value, counted):
    truth = annos(["Car"])
    truth[key][0] = value
    found = entry(average_precisions([truth], [annos(["Car"])], ["Car"]), "3d")
    assert "/".join(map(str, found.ground_truths)) == counted


def test_float32_labels_count_as_the_decimals_they_were_read_from(annos):
    """142.3 - 117.3 is a little above 25 in float64 and exactly 25 in float32; info files hold float32."""
    truth = annos(["Car"], bbox=(0, 117.3, 60, 142.3))
    stored = truth | {"bbox": truth["bbox"].astype(np.float32)}
    assert np.float64(stored["bbox"][0, 3]) - np.float64(stored["bbox"][0, 1]) == 25
    for frame in (truth, stored):
        assert entry(average_precisions([frame], [annos(["Car"])], ["Car"]), "3d").ground_truths == (0, 1, 1)


def test_which_detections_are_high_enough(annos):
    """39.9 px are too few for easy, 40 are enough, whichever way up the box is (a ground truth needs more than 40)."""
    low, high = annos(["Car"], bbox=(0, 0, 60, 39.9)), annos(["Car"], bbox=(0, 40, 60, 0))
    for frame, counted in ((low, (0, 1, 1)), (high, (1, 1, 1))):
        assert entry(average_precisions([annos(["Car"])], [frame], ["Car"]), "3d").detections == counted


def test_vans_are_neutral_for_cars_and_names_are_without_case(annos):
    truth = [annos(["car", "VAN"]) for _ in range(41)]
    found = [annos(["CAR", "Car"], scores=[0.5, 0.9]) for _ in range(41)]
    assert evaluate(truth, found, ["Car"]).metrics["Car_3d/easy_R40"] == 100
    assert entry(average_precisions(truth, found, ["Car"]), "3d").ground_truths == (41, 41, 41)


def test_a_low_detection_of_another_class_can_take_a_ground_truth(annos):
    """KITTI's rule: low ones are ignored whatever their class, and still absorb what they overlap alone."""
    truth = [annos(["Car"]) for _ in range(82)]
    absorbing = [annos(["Pedestrian"], bbox=(100, 100, 200, 120)) for _ in range(41)]
    found = cars(annos, 41) + absorbing
    scores = entry(average_precisions(truth, found, ["Car"]), "3d").scores
    assert scores[0].r40 == pytest.approx(100 * 20 / 40)  # 41 of 82: recall 1/2, position 20


def test_the_text_names_everything_and_keeps_openpcdets_lines(annos):
    truth, found = cars(annos, 41), cars(annos, 41)
    lines = evaluate(truth, found, ["Car"]).text.splitlines()
    block = lines.index("Car AP_R40@0.70, 0.70, 0.70:")
    assert lines[block + 1 : block + 5] == [
        f"{m:<4} AP:100.0000, 100.0000, 100.0000" for m in ("bbox", "bev", "3d", "aos")
    ]
    assert "Car AP@0.70, 0.70, 0.70:" in lines and "Car AP@0.70, 0.50, 0.50:" in lines
    row = next(line for line in lines if line.startswith("Car") and " 3d " in line)
    assert row.split() == ["Car", "3d", "0.70", *["100.00"] * 6, "41/41/41", "41/41/41"]


@pytest.mark.parametrize("key, value", [("score", np.nan), ("bbox", np.nan), ("alpha", np.inf)])
def test_values_that_are_not_finite_are_refused_with_their_place(annos, key, value):
    found = annos(["Car", "Car"])
    found[key][1] = value
    with pytest.raises(ValueError, match=rf"detections of frame number 1: {key} of object 1 is .*finite"):
        evaluate([annos(), annos()], [annos(), found], ["Car"])


def test_missing_and_wrong_arrays_are_refused_with_their_place(annos):
    found = annos(["Car"]) | {"frame_id": "000042"}
    score = found.pop("score")
    with pytest.raises(ValueError, match="detections of frame 000042: score missing"):
        evaluate([annos()], [found], ["Car"])
    with pytest.raises(ValueError, match=r"frame 000042: score has shape \(2,\), but 1 objects need"):
        evaluate([annos()], [found | {"score": np.repeat(score, 2)}], ["Car"])
    with pytest.raises(ValueError, match="2 frames of ground truths but 1 of detections"):
        evaluate([annos(), annos()], [annos()], ["Car"])


def test_no_frames_at_all():
    assert evaluate([], [], ["Car"]).metrics == {}
