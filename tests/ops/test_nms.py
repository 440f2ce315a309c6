"""Non-maximum suppression: hand cases, the reference, recorded selections."""

import math

import numpy as np
import pytest
import torch
from ops_cases import box, generator, random_boxes
from torch import library

from pcdet.ops.iou3d import boxes_iou_bev
from pcdet.ops.iou3d.cpu import suppress
from pcdet.ops.nms import nms_bev, nms_circle, nms_groups, nms_normal_bev, reference

SLACK = 6e-3  # the overlap that decides is off by a seam of 1 cm


def nms_reference(boxes, scores, threshold, greedy=reference.greedy):
    order = scores.argsort(descending=True, stable=True)
    return order[greedy(boxes[order], threshold, len(boxes))]


def random_scene(count=300, seed=0, spread=8.0):
    return random_boxes(count, seed, spread), torch.rand(count, generator=generator(seed + 1))


def test_the_better_of_two_stays():
    boxes = torch.cat([box(), box(x=0.5), box(x=10)])
    assert nms_bev(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist() == [1, 2]
    assert nms_bev(boxes, torch.tensor([0.9, 0.5, 0.95]), 0.5).tolist() == [2, 0]


def test_a_suppressed_box_suppresses_nothing():
    """A chain: 0 drops 1, so 2, which only 1 overlaps enough, stays."""
    boxes = torch.cat([box(), box(x=1.5), box(x=3.0)])
    assert nms_bev(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.3).tolist() == [0, 2]


def test_a1_one_of_two_identical_boxes_stays_at_every_yaw():
    for yaw in np.arange(-3.14, 3.14, 0.05):
        twin = box(x=-48, y=18, dx=6.5, dy=2.7, heading=float(yaw)).repeat(2, 1)
        assert nms_bev(twin, torch.tensor([0.8, 0.9]), 0.7).tolist() == [1]


@pytest.mark.parametrize("door", [nms_bev, nms_normal_bev])
def test_a8_nms_of_one_box_and_of_none(door):
    assert door(box(), torch.tensor([0.3]), 0.5).tolist() == [0]
    none = door(torch.zeros(0, 7), torch.zeros(0), 0.5)
    assert none.shape == (0,) and none.dtype == torch.int64


@pytest.mark.parametrize("threshold", [0.01, 0.7, 1.0])
def test_a9_the_threshold_stays_a_float_and_indices_are_int64(threshold):
    boxes = torch.cat([box(), box(x=0.4), box(x=3.9), box(x=9)])  # IoU of the first with the others: .82, .013, 0
    kept = nms_bev(boxes, torch.tensor([0.9, 0.8, 0.7, 0.6]), threshold)
    assert kept.dtype == torch.int64
    assert kept.tolist() == {0.01: [0, 3], 0.7: [0, 2, 3], 1.0: [0, 1, 2, 3]}[threshold]


def test_a9_identical_boxes_survive_a_threshold_of_one():
    boxes = box(heading=0.7).repeat(3, 1)
    assert nms_bev(boxes, torch.tensor([0.1, 0.2, 0.3]), 1.0).tolist() == [2, 1, 0]


def test_a10_equal_boxes_and_scores_give_the_same_answer_every_time():
    boxes, scores = box(heading=0.3).repeat(3, 1), torch.full((3,), 0.5)
    assert all(nms_bev(boxes, scores, 0.1).tolist() == [0] for _ in range(100))
    apart = torch.cat([box(), box(x=20), box(x=40)])
    assert all(nms_bev(apart, scores, 0.1).tolist() == [0, 1, 2] for _ in range(100))


def test_exactly_at_the_threshold_is_kept():
    boxes = torch.cat([box(dx=2, dy=2), box(x=1, dx=2, dy=2)])  # IoU 1/3
    scores = torch.tensor([0.9, 0.8])
    assert len(nms_bev(boxes, scores, 1 / 3)) == 2
    assert len(nms_bev(boxes, scores, 1 / 3 - 1e-6)) == 1


def test_pre_and_post_limits():
    boxes, scores = random_scene(200)
    whole = nms_bev(boxes, scores, 0.3)
    assert torch.equal(nms_bev(boxes, scores, 0.3, post_max_size=7), whole[:7])
    best = scores.argsort(descending=True)[:50]
    assert set(nms_bev(boxes, scores, 0.3, pre_max_size=50).tolist()) == set(
        best[nms_bev(boxes[best], scores[best], 0.3)].tolist()
    )
    assert nms_bev(boxes, scores, 0.3, post_max_size=0).tolist() == []
    assert nms_bev(boxes, scores, 0.3, pre_max_size=1000, post_max_size=1000).tolist() == whole.tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.1, 0.5, 0.8])
def test_kernel_agrees_with_reference(seed, threshold):
    boxes, scores = random_scene(250, seed)
    boxes[100:120] = boxes[:20]
    assert nms_bev(boxes, scores, threshold).tolist() == nms_reference(boxes, scores, threshold).tolist()


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.1, 0.5, 0.8])
def test_kernel_of_upright_boxes_agrees_with_reference(threshold):
    boxes, scores = random_scene(250)
    boxes[100:120] = boxes[:20]
    expected = nms_reference(boxes, scores, threshold, reference.greedy_normal)
    assert nms_normal_bev(boxes, scores, threshold).tolist() == expected.tolist()


def decisive_boxes(seed):
    """Boxes that overlap by little, by much, not quite, cross, hold each other, or have odd sizes and places."""
    g = generator(seed)
    boxes = random_boxes(200, seed, spread=3)
    boxes[:60, 3:5] = 0.02 + 0.4 * torch.rand(60, 2, generator=g)  # small ones
    boxes[60:90, 4] = 0.05  # thin ones
    boxes[90:150, 6] = (boxes[90:150, 6] / (math.pi / 2)).round() * math.pi / 2 + 1e-4 * torch.rand(60, generator=g)
    near = boxes[torch.randint(0, 200, (200,), generator=g)].clone()
    cos, sin, steps = near[:, 6].cos(), near[:, 6].sin(), torch.randint(0, 2, (2, 200), generator=g)
    along, across = near[:, 3:5].T * steps + 0.02 * (torch.rand(2, 200, generator=g) - 0.3)  # side by side, or atop
    near[:, 0] += along * cos - across * sin
    near[:, 1] += along * sin + across * cos
    near[100:, 6] += 0.02 * torch.randn(100, generator=g)
    odd = torch.stack([box(dx=0)[0], box(dx=-1)[0], box(dy=-0.01)[0], box(dx=1e6)[0], torch.zeros(7)])
    return torch.cat([boxes, near, odd]) + torch.tensor([[40.0 * seed, -20.0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.1, 0.5, 0.8])
def test_what_the_kernel_does_not_compute_would_not_have_mattered(seed, threshold):
    """Every pair alone: most are decided from bounds of the overlap, and must be as the overlap itself would say."""
    boxes = decisive_boxes(seed)
    expected = reference.suppressions(boxes, threshold)  # (M, M)
    pairs = (expected | (boxes_iou_bev(boxes, boxes) > 0)).nonzero()  # (P, 2)
    assert len(pairs) > 5000 and expected.sum() > 500
    limit = np.float32(threshold)
    found = torch.tensor([len(suppress(pair, limit, 2)) == 1 for pair in boxes[pairs].numpy()])
    wrong = pairs[found != expected[pairs[:, 0], pairs[:, 1]]]
    assert len(wrong) == 0, boxes[wrong].tolist()


def test_boxes_five_millimetres_apart_suppress_each_other_as_in_openpcdet():
    squares, scores = torch.cat([box(dx=1, dy=1), box(x=1.005, dx=1, dy=1)]), torch.tensor([0.9, 0.8])
    assert nms_bev(squares, scores, 0.002).tolist() == [0]  # 0.005 / 1.995
    assert nms_bev(squares, scores, 0.003).tolist() == [0, 1]
    assert nms_normal_bev(squares, scores, 0.0).tolist() == [0, 1]


def test_kept_boxes_are_far_apart_and_dropped_ones_are_near_a_better_kept_one():
    boxes, scores = random_scene(400)
    threshold = 0.2
    kept = nms_bev(boxes, scores, threshold)
    iou = boxes_iou_bev(boxes, boxes)
    assert (scores[kept].diff() <= 0).all()
    assert iou[kept][:, kept].fill_diagonal_(0).max() <= threshold + SLACK
    for dropped in set(range(400)) - set(kept.tolist()):
        better = kept[scores[kept] > scores[dropped]]
        assert iou[dropped, better].max() > threshold - SLACK


def test_normal_nms_ignores_the_heading():
    boxes = torch.cat([box(heading=0.0), box(y=2.5, heading=math.pi / 2)])
    scores = torch.tensor([0.9, 0.8])
    assert len(nms_bev(boxes, scores, 0.05)) == 1  # turned, they cross
    assert len(nms_normal_bev(boxes, scores, 0.05)) == 2


def test_scores_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="one a box"):
        nms_bev(random_boxes(3), torch.rand(2), 0.5)
    with pytest.raises(ValueError, match=r"\(M, 7\+\)"):
        nms_bev(torch.rand(3, 5), torch.rand(3), 0.5)


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.1, 0.5, 0.7, 0.8])
@pytest.mark.parametrize("door, key", [(nms_bev, "nms_gpu"), (nms_normal_bev, "nms_normal_gpu")])
def test_recorded_selections(shared, door, key, threshold):
    data = np.load(shared / "oracles" / "ops" / "nms.npz")
    boxes, scores = torch.from_numpy(data["in_boxes"]), torch.from_numpy(data["in_scores"])
    assert door(boxes, scores, threshold).tolist() == data[f"out_{key}_{threshold}"].tolist()


@pytest.mark.parametrize("threshold", [0.01, 0.5, 0.7])
def test_clusters_as_a_trained_head_gives_them(threshold):
    """Where nearly all boxes are decided from bounds, at the size that a scene has."""
    boxes = random_boxes(20, spread=30).repeat(40, 1)
    boxes[:, :5] += 0.3 * torch.randn(800, 5, generator=generator())
    boxes[:, 3:5] = boxes[:, 3:5].clamp(min=0.3)
    scores = torch.rand(800, generator=generator(1))
    assert torch.equal(nms_bev(boxes, scores, threshold), nms_reference(boxes, scores, threshold))


@pytest.mark.parametrize("name", ["nms_bev", "nms_normal_bev"])
def test_registered_operators(name):
    library.opcheck(getattr(torch.ops.pcdet, name).default, (random_boxes(6), 0.3, 5))


def test_recorded_selection_with_a_limit(shared):
    data = np.load(shared / "oracles" / "ops" / "nms.npz")
    boxes, scores = torch.from_numpy(data["in_boxes"]), torch.from_numpy(data["in_scores"])
    assert nms_bev(boxes, scores, 0.1, pre_max_size=100).tolist() == data["out_nms_gpu_0.1_pre100"].tolist()


@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.7])
def test_recorded_selection_of_random_boxes(shared, threshold):
    data = np.load(shared / "oracles" / "openpcdet_data" / "coders_geometry.npz")
    boxes, scores = torch.from_numpy(data["geo_a"]), torch.from_numpy(data["nms_scores"])
    assert nms_bev(boxes, scores, threshold).tolist() == data[f"nms_gpu_{threshold}"].tolist()


@pytest.mark.parametrize("rotated, one", [(True, nms_bev), (False, nms_normal_bev)])
@pytest.mark.parametrize("limits", [(None, None), (40, 7), (20, 100), (5, 0)])
def test_groups_one_by_one(rotated, one, limits):
    boxes, scores = random_boxes(180, spread=6.0).view(3, 60, 7), torch.rand(3, 60, generator=generator())
    scores[1, 10:40] = 0.5  # equal ones
    held = torch.tensor([60, 50, 0])
    kept, counts = nms_groups(boxes, scores, 0.1, *limits, rotated=rotated, held=held)
    width = 60 if limits[1] is None else limits[1]
    assert kept.shape == (3, width)
    for group, count in enumerate(held.tolist()):
        expected = one(boxes[group, :count], scores[group, :count], 0.1, *limits).tolist()
        assert kept[group].tolist() == expected + [-1] * (width - len(expected)) and counts[group] == len(expected)
    everyone = nms_groups(boxes, scores, 0.1, *limits, rotated=rotated)[0]
    assert torch.equal(everyone[0], kept[0]) and nms_groups(boxes[:, :0], scores[:, :0], 0.1)[0].shape == (3, 0)


def test_groups_of_wrong_shapes():
    with pytest.raises(ValueError, match=r"scores must be \(2, 5\) and held \(2,\)"):
        nms_groups(torch.zeros(2, 5, 7), torch.zeros(2, 4), 0.1)


def test_circles_by_hand():
    """Distances 1, 2 and 3 m in a row; a distance of exactly the root of the threshold is too near."""
    centres = torch.tensor([[0.0, 0], [1, 0], [3, 0], [6, 0]])
    scores = torch.tensor([0.5, 0.9, 0.8, 0.7])
    assert nms_circle(centres, scores, 0.5).tolist() == [1, 2, 3, 0]
    assert nms_circle(centres, scores, 1.0).tolist() == [1, 2, 3]
    assert nms_circle(centres, scores, 4.0).tolist() == [1, 3]
    assert nms_circle(centres, scores, 0.5, pre_max_size=2).tolist() == [1, 2]
    assert nms_circle(centres, scores, 0.5, post_max_size=1).tolist() == [1]
    assert nms_circle(centres[:0], scores[:0], 1.0).tolist() == []


def test_circles_need_one_score_each():
    with pytest.raises(ValueError, match=r"centres \(M, 2\) and scores \(M,\)"):
        nms_circle(torch.zeros(3, 2), torch.zeros(2), 1.0)
