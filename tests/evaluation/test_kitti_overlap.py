"""Overlaps of KITTI boxes by hand."""

import math

import numpy as np
import pytest

from pcdet.evaluation.kitti.frames import join_frames
from pcdet.evaluation.kitti.overlap import bbox_overlaps, dont_care_shares, pair_up, solid_overlaps


def solid(make, first: dict, second: dict):
    """bev and 3-D overlap of two single objects."""
    truth, found = make(["Car"]), make(["Car"])
    for frame, values in ((truth, first), (found, second)):
        for key, value in values.items():
            frame[key] = np.array([value], dtype=float)
    sides = join_frames([truth], scored=False), join_frames([found], scored=True)
    bev, volume = solid_overlaps(*sides, pair_up(*sides))
    return bev.item(), volume.item()


def test_pairs_run_over_ground_truths_then_detections(annos):
    truth = join_frames([annos(["Car"] * 2), annos(["Car"]), annos()], scored=False)
    found = join_frames([annos(["Car"] * 3), annos(), annos(["Car"])], scored=True)
    pairs = pair_up(truth, found)
    assert pairs.truth.tolist() == [0, 0, 0, 1, 1, 1] and pairs.found.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("rotation", [0.0, 0.3, 1.2, 2.9])
def test_a5_boxes_shifted_along_their_own_length(annos, rotation):
    """Two 4 x 2 boxes 2 m apart share a half: 1/3. In the camera frame the length runs along (cos, -sin) in x, z."""
    step = [2 * math.cos(rotation), 0, -2 * math.sin(rotation)]
    first = {"location": [3, 1, 20], "rotation_y": rotation}
    second = {"location": np.add([3, 1, 20], step), "rotation_y": rotation}
    np.testing.assert_allclose(solid(annos, first, second), 1 / 3, atol=1e-12)


def test_heights_share_from_the_bottom_up(annos):
    """1.5 m and 3 m high on the same bottom: half; y points down, so a bottom 1 m lower shares less."""
    low, high = {"location": [0, 1, 20]}, {"location": [0, 1, 20], "dimensions": [4, 3.0, 2]}
    np.testing.assert_allclose(solid(annos, low, high), [1, 0.5])
    high["location"] = [0, 3, 20]  # from y = 3 up to y = 0; the other from 1 to -0.5: 1 m of 3.5 m
    np.testing.assert_allclose(solid(annos, low, high), [1, 1 / 3.5])


@pytest.mark.parametrize(
    "bad, bev",
    [
        ({"dimensions": [4, 1.5, 0]}, 0), ({"dimensions": [4, 1.5, -2]}, 0), ({"dimensions": [0, 0, 0]}, 0),
        ({"dimensions": [np.nan, 1.5, 2]}, 0), ({"dimensions": [np.inf, 1.5, 2]}, 0), ({"rotation_y": np.nan}, 0),
        ({"location": [np.nan, 1.5, 20]}, 0), ({"dimensions": [4, 0, 2]}, 1), ({"dimensions": [4, -1, 2]}, 1),
        ({"dimensions": [4, np.nan, 2]}, 1), ({"location": [0, np.nan, 20]}, 1),
    ],
)  # fmt: skip
def test_a6_degenerate_boxes_overlap_nothing_whichever_side_they_are_on(annos, bad, bev):
    """A bad height spoils 3-D only."""
    np.testing.assert_allclose(solid(annos, bad, {}), [bev, 0])
    np.testing.assert_allclose(solid(annos, {}, bad), [bev, 0])


def test_image_overlap_and_dont_care_share(annos):
    """Half of a 100 x 100 px box over another: 1/3 of the union, 1/2 of itself."""
    truth = join_frames([annos(["Car", "DontCare"], x=[0.0, 0.0])], scored=False)
    found = join_frames([annos(["Car"], x=[5.0])], scored=True)
    pairs = pair_up(truth, found)
    np.testing.assert_allclose(bbox_overlaps(truth, found, pairs), [1 / 3, 1 / 3])
    np.testing.assert_allclose(dont_care_shares(truth, found, pairs), [0.5])
