"""Which points become keypoints: by hand, against brute force, and as recorded."""

import numpy as np
import pytest
import torch

import pcdet.models.pfe.keypoints as keypoints
from pcdet.models.pfe.keypoints import furthest_keypoints, near_proposals, proposal_centric_keypoints

LINE = torch.tensor([[0.0, 0, 0], [1, 0, 0], [5, 0, 0], [2, 0, 0]])


def test_furthest_points_of_every_scene():
    rows = furthest_keypoints(torch.cat([LINE, LINE + 9]), [4, 4], 3)
    assert [some.tolist() for some in rows] == [[0, 2, 3], [4, 6, 7]]


def test_few_points_are_repeated_in_turn():
    rows = furthest_keypoints(torch.cat([LINE[:2], LINE[:3]]), [2, 0, 3], 5)
    assert [some.tolist() for some in rows] == [[0, 1, 0, 1, 0], [], [2, 4, 3, 2, 4]]


def test_near_proposals_by_hand():
    """A box of 6 x 8 x 0 has half a diagonal of 5 metres; the border is outside."""
    rois = torch.tensor([[0.0, 0, 0, 6, 8, 0, 1.0]])
    points = torch.tensor([[6.4, 0, 0], [0, -6.4, 0], [0, 0, 6.6], [6.5, 0, 0]])
    assert near_proposals(points, rois, 1.5).tolist() == [True, True, False, False]


def test_only_the_nearest_proposal_counts():
    """The large box would reach the point, but the centre of the small one is nearer."""
    rois = torch.tensor([[0.0, 0, 0, 60, 80, 0, 0], [20, 0, 0, 0.6, 0.8, 0, 0]])
    assert near_proposals(torch.tensor([[15.0, 0, 0], [5, 0, 0]]), rois, 1.0).tolist() == [False, True]


@pytest.mark.parametrize("pairs", [1, 20, 1 << 24])
def test_parts_change_nothing(pairs, monkeypatch):
    monkeypatch.setattr(keypoints, "PAIRS_AT_ONCE", pairs)
    draw = torch.Generator().manual_seed(0)
    points, rois = torch.randn(50, 3, generator=draw) * 4, torch.rand(6, 7, generator=draw) * 4
    distance = (points[:, None] - rois[:, :3]).norm(dim=2)
    least, box = distance.min(dim=1)
    expected = least < rois[box, 3:6].norm(dim=1) / 2 + 0.5
    assert 0 < expected.sum() < 50
    assert torch.equal(near_proposals(points, rois, 0.5), expected)


def test_rows_that_pad_a_scene_are_no_proposals():
    """Otherwise the result of PV-RCNN++ would depend on how many proposals other scenes of the batch have."""
    rois = torch.tensor([[10.0, 0, 0, 3, 4, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
    points = torch.tensor([[0.5, 0, 0], [4, 0, 0], [8, 0, 0]])
    assert near_proposals(points, rois, 4.0).tolist() == [False, True, True]
    assert near_proposals(points, rois[1:], 4.0).tolist() == [False] * 3


def test_nothing_is_near_where_nothing_is():
    assert near_proposals(torch.rand(3, 3), torch.zeros(0, 7), 9.0).tolist() == [False] * 3
    assert near_proposals(torch.zeros(0, 3), torch.zeros(2, 7), 9.0).shape == (0,)


def test_proposals_draw_the_keypoints():
    """Of three scenes one has points near its box, one has none near it, and one has no points."""
    points = torch.cat([LINE, LINE + 30])
    rois = torch.tensor([[1.5, 0, 0, 0.01, 0.01, 0.01, 0]]).repeat(3, 1, 1)
    rois[1:, 0, 0] = -50
    rows = proposal_centric_keypoints(points, [4, 4, 0], rois, num_keypoints=8, num_sectors=1, radius=1.0)
    assert [sorted(some.tolist()) for some in rows] == [[1, 3], [4], []]


def test_recorded_neighbourhood_of_proposals(shared):
    data = np.load(shared / "oracles" / "ops" / "vsa_helpers.npz")
    points = torch.from_numpy(data["in_points"])
    near = near_proposals(points, torch.from_numpy(data["in_rois"]), 1.6)
    assert np.array_equal(near.numpy(), data["out_roi_mask"])
    assert np.array_equal(points[near].numpy(), data["out_roi_points"])
