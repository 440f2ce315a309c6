"""The LiDAR-frame metric by hand, and against KITTI's on the same boxes."""

import numpy as np
import pytest

from pcdet.evaluation.kitti import evaluate as evaluate_kitti
from pcdet.evaluation.lidar import evaluate, make_bands


def truth(boxes, names=None, points=None):
    boxes = np.array(boxes, dtype=float).reshape(-1, 7)
    out = {"name": np.array(names or ["Car"] * len(boxes), dtype=np.str_), "gt_boxes_lidar": boxes}
    return out | ({} if points is None else {"num_points_in_gt": np.array(points)})


def found(boxes, scores, names=None):
    boxes = np.array(boxes, dtype=float).reshape(-1, 7)
    names = np.array(names or ["Car"] * len(boxes), dtype=np.str_)
    return {"name": names, "boxes_lidar": boxes, "score": np.array(scores, dtype=float)}


def car(x, y=0.0, heading=0.3):
    return [x, y, 1, 4, 2, 1.5, heading]


def test_bands():
    assert [b.name for b in make_bands((30, 50), (5, 20))] == [
        "all", "0-30m", "30-50m", "50+m", "0-4pts", "5-19pts", "20+pts",
    ]  # fmt: skip
    assert [b.name for b in make_bands()] == ["all"]
    for borders in ((50, 30), (0, 30), (30, 30), (-1,)):
        with pytest.raises(ValueError, match="must be positive and rise"):
            make_bands(borders)


def test_it_equals_kittis_metric_on_the_same_boxes():
    """Boxes in KITTI's camera axes, without heights in the image; noise makes hits, near misses and false ones."""
    rng = np.random.default_rng(0)
    frames = {"gt": [], "dt": [], "kitti_gt": [], "kitti_dt": []}
    for _ in range(60):
        boxes = np.column_stack(
            [rng.uniform(5, 40, 3), rng.uniform(-30, 30, 3), rng.uniform(0, 1, 3), rng.uniform(2, 5, (3, 3)),
             rng.uniform(-3, 3, 3)]
        )  # fmt: skip
        noisy = boxes[rng.random(3) < 0.8] + rng.normal(0, 0.12, (1, 7))
        noisy = np.concatenate([noisy, boxes[:1] + [9, 9, 0, 0, 0, 0, 0]])
        scores = rng.random(len(noisy))
        frames["gt"].append(truth(boxes))
        frames["dt"].append(found(noisy, scores))
        frames["kitti_gt"].append(in_camera_axes(boxes, np.zeros(3)))
        frames["kitti_dt"].append(in_camera_axes(noisy, scores))
    ours = evaluate(frames["gt"], frames["dt"], ["Car"], bands=make_bands()).metrics
    theirs = evaluate_kitti(frames["kitti_gt"], frames["kitti_dt"], ["Car"], lidar_only=True).metrics
    assert 20 < ours["Car_3d/all_R40"] < ours["Car_bev/all_R40"] < 95
    for tag in ("3d", "bev", "3d_loose", "bev_loose"):
        for kind in ("R40", "R11"):
            assert ours[f"Car_{tag}/all_{kind}"] == pytest.approx(theirs[f"Car_{tag}/hard_{kind}"], abs=1e-9)


def in_camera_axes(boxes, scores):
    count = len(boxes)
    x, y, z, dx, dy, dz, heading = boxes.T
    return {
        "name": np.array(["Car"] * count), "truncated": np.zeros(count), "occluded": np.zeros(count),
        "alpha": np.zeros(count), "bbox": np.zeros((count, 4)), "dimensions": np.stack([dx, dz, dy], axis=1),
        "location": np.stack([-y, -(z - dz / 2), x], axis=1), "rotation_y": -heading - np.pi / 2, "score": scores,
    }  # fmt: skip


@pytest.mark.parametrize("heading", [0.0, 0.7, -2.5])
def test_overlap_along_the_heading(heading):
    """Half of the length is shared: 1/3, above 0.3 and below 0.35; in 3-D also half of the height: 1/7."""
    step = 2 * np.array([np.cos(heading), np.sin(heading)])
    near, far = [car(10, 3, heading)], [car(10 + step[0], 3 + step[1], heading)]
    for least, expected in ((0.3, 100), (0.35, 0)):
        metrics = evaluate([truth(near)], [found(far, [1])], ["Car"], min_overlaps={"Car": (least, 0.1)}).metrics
        assert metrics["Car_bev/all_exact"] == metrics["Car_3d/all_exact"] == expected
    far[0][2] += 0.75
    for least, expected in ((0.14, 100), (0.15, 0)):
        metrics = evaluate([truth(near)], [found(far, [1])], ["Car"], min_overlaps={"Car": (least, 0.1)}).metrics
        assert metrics["Car_3d/all_exact"] == expected and metrics["Car_bev/all_exact"] == 100


def test_a_detection_beyond_the_border_of_a_band_still_finds_the_object_within():
    report = evaluate([truth([car(29.9)])], [found([car(30.1)], [0.9])], ["Car"])
    assert report.metrics["Car_3d/0-30m_exact"] == report.metrics["Car_3d/all_exact"] == 100
    assert "Car_3d/30-50m_exact" not in report.metrics, "no ground truth stands behind it"


def test_false_detections_count_in_their_own_band_alone():
    """Near and far car are found; a better-scored false one is near: half the precision at full recall there."""
    truths = [truth([car(10), car(40)])]
    results = [found([car(10), car(40), car(15, 9)], [0.5, 0.5, 0.9])]
    metrics = evaluate(truths, results, ["Car"]).metrics
    assert metrics["Car_3d/0-30m_exact"] == 50 and metrics["Car_3d/30-50m_exact"] == 100
    assert metrics["Car_3d/all_exact"] == pytest.approx(100 * 2 / 3)


def test_bands_by_points_ask_for_their_own_objects():
    truths = [truth([car(10), car(20)], points=[3, 100])]
    metrics = evaluate(truths, [found([car(20)], [0.9])], ["Car"], bands=make_bands((), (5,))).metrics
    assert metrics["Car_3d/0-4pts_exact"] == 0 and metrics["Car_3d/5+pts_exact"] == 100


def test_ignored_objects_are_neither_asked_for_nor_held_against_anybody():
    truths, results = [truth([car(10), car(20)])], [found([car(10), car(20)], [0.5, 0.9])]
    ignored = [np.array([False, True])]
    report = evaluate(truths, results, ["Car"], ignored=ignored, why_ignored="beyond the fence")
    assert report.metrics["Car_3d/all_exact"] == 100
    assert "Not asked for (beyond the fence): Car 1" in report.text and "  1/1/0/0" in report.text


def test_d3_frames_without_objects_or_detections():
    nothing, none = truth([]), found([], [])
    assert evaluate([nothing], [found([car(10)], [0.9])], ["Car"]).metrics == {}
    assert "no ground truth of Car in 1 frames" in evaluate([nothing], [none], ["Car"]).text
    metrics = evaluate([truth([car(10)]), nothing], [none, found([car(10)], [0.9])], ["Car"]).metrics
    assert metrics["Car_3d/all_R40"] == metrics["Car_3d/all_exact"] == 0
    text = evaluate([truth([car(10)])], [none], ["Car", "Bus"]).text
    assert "no Car was detected" in text and "no ground truth of Bus" in text and "n/a" in text
    assert "nan" not in text.lower()


@pytest.mark.parametrize(
    "truths, results, message",
    [
        ([truth([])], [], "1 frames of ground truths but 0"),
        ([truth([car(1)])], [found([car(1)], [np.nan])], "score of frame .* is nan"),
        ([truth([car(1)])], [{"name": np.array(["Car"]), "score": np.ones(1)}], "boxes_lidar is missing"),
        ([truth([car(1)], names=["Car", "Car"])], [found([], [])], r"gt_boxes_lidar has shape \(1, 7\), but 2"),
    ],
)
def test_what_does_not_pair_up_is_an_error(truths, results, message):
    with pytest.raises(ValueError, match=message):
        evaluate(truths, results, ["Car"])


def test_boxes_that_are_not_finite_overlap_nothing():
    bad = car(10)
    bad[0] = np.nan
    assert evaluate([truth([car(10)])], [found([bad], [0.9])], ["Car"]).metrics["Car_3d/all_exact"] == 0
