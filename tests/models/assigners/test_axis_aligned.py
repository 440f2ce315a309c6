import itertools

import numpy as np
import pytest
import torch
import yaml

from pcdet.models.assigners.axis_aligned import AnchorSet, match_anchors, sample_anchors
from pcdet.models.assigners.overlap_pairs import nearest_bev_pairs, nearest_bev_rectangles, volume_pairs
from pcdet.models.box_coders.residual import ResidualCoder
from pcdet.models.dense_heads.anchors import anchor_grid
from pcdet.ops.iou3d import boxes_iou3d_published
from pcdet.structures.dataset_info import DatasetInfo

CAR = AnchorSet(label=1, first=0, count=2, matched_threshold=0.6, unmatched_threshold=0.45)
PEDESTRIAN = AnchorSet(label=2, first=2, count=2, matched_threshold=0.5, unmatched_threshold=0.35)


@pytest.fixture
def anchors():
    """(10, 12, 4, 7): two cars and two pedestrians at each cell, one metre apart."""
    grid = torch.zeros(10, 12, 4, 7)
    grid[..., 0] = torch.arange(12).view(1, 12, 1)
    grid[..., 1] = torch.arange(10).view(10, 1, 1) - 5.0
    grid[..., :2, 3:6] = torch.tensor([4.0, 2.0, 1.5])
    grid[..., 2:, 3:6] = torch.tensor([0.8, 0.6, 1.7])
    grid[..., 1::2, 6] = 1.57
    return grid


def labelled(*rows):
    return torch.tensor([rows]) if rows else torch.zeros(1, 0, 8)


def random_boxes(scenes, count, seed):
    draw = torch.Generator().manual_seed(seed)
    boxes = torch.rand(scenes, count, 8, generator=draw)
    boxes[..., 0] *= 11
    boxes[..., 1] = boxes[..., 1] * 9 - 5
    boxes[..., 2] -= 0.5
    boxes[..., 3:6] = torch.tensor([3.8, 1.9, 1.5]) * (0.6 + boxes[..., 3:6])
    boxes[..., 6] = boxes[..., 6] * 8 - 4
    boxes[..., 7] = torch.randint(0, 4, (scenes, count), generator=draw)
    small = boxes[..., 7] == 2
    boxes[small] = boxes[small] * torch.tensor([1, 1, 1, 0.3, 0.4, 1, 1, 1])
    return boxes * (boxes[..., 7:] > 0)


def test_headings_are_rounded_to_the_nearest_quarter_turn():
    boxes = torch.tensor([[0.0, 0, 0, 4, 2, 1, heading] for heading in (0.0, 0.7, 0.8, 1.57, 2.4, 3.1, -0.8)])
    along_x = [-2.0, -1, 2, 1]
    along_y = [-1.0, -2, 1, 2]
    wanted = torch.tensor([along_x, along_x, along_y, along_y, along_x, along_x, along_y])
    torch.testing.assert_close(nearest_bev_rectangles(boxes), wanted)


def test_overlap_by_hand(anchors):
    """A car of the anchors' size, 1 m off along x: 3 x 2 of 10 square metres are shared."""
    pairs = nearest_bev_pairs(anchors[:, :, :2], torch.tensor([[3.0, 0, 0, 4, 2, 1.5, 0.0]]))
    table = dict(zip(pairs.anchors.tolist(), pairs.overlap.tolist(), strict=True))
    row = 5 * 12  # y = 0
    assert table[(row + 3) * 2] == pytest.approx(1)
    assert table[(row + 2) * 2] == pytest.approx(6 / 10)
    assert table[(row + 4) * 2] == pytest.approx(6 / 10)
    assert table[(row + 3) * 2 + 1] == pytest.approx(4 / 12)  # crossing
    assert (row + 7) * 2 not in table  # touching at x = 5 only


@pytest.mark.parametrize("seed", range(3))
def test_pairs_equal_the_full_table(anchors, seed):
    boxes = random_boxes(1, 9, seed)[0, :, :7]
    a, b = nearest_bev_rectangles(anchors.view(-1, 7))[:, None], nearest_bev_rectangles(boxes)[None]
    shared = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    area_a, area_b = ((r[..., 2] - r[..., 0]) * (r[..., 3] - r[..., 1]) for r in (a, b))
    wanted = shared / (area_a + area_b - shared).clamp(min=1e-6)
    pairs = nearest_bev_pairs(anchors, boxes)
    table = torch.zeros_like(wanted)
    table[pairs.anchors, pairs.boxes] = pairs.overlap
    assert torch.equal(table, wanted)
    assert len(pairs.overlap) == (wanted > 0).sum()


def test_an_exact_car_is_found_by_its_anchor(anchors):
    labels, positives, boxes = match_anchors(anchors, [CAR, PEDESTRIAN], labelled([3.0, 0, 0, 4, 2, 1.5, 0.0, 1]))
    row = 5 * 12
    found = {((row + x) * 4): 1 for x in (2, 3, 4)}  # overlap 0.6, 1, 0.6
    assert {i: labels[0, i].item() for i in positives.tolist()} == found
    assert torch.equal(boxes, torch.tensor([[3.0, 0, 0, 4, 2, 1.5, 0.0]]).expand(3, 7))
    assert (labels < 0).sum() == 0


def test_the_best_anchors_of_a_box_are_positive_however_little_they_overlap(anchors):
    """Case: a tiny car between four anchors; all four tie and all are positive, others remain background."""
    labels, positives, _ = match_anchors(anchors, [CAR, PEDESTRIAN], labelled([3.5, 0.5, 0, 0.1, 0.1, 1, 0, 1]))
    overlap = 0.01 / 8
    assert overlap < CAR.unmatched_threshold
    assert len(positives) > 1
    assert (labels.flatten()[positives] == 1).all()
    assert (labels == 0).sum() == labels.numel() - len(positives)


def test_an_anchor_between_the_thresholds_is_not_judged(anchors):
    """1.2 m along x from the nearest anchors: 2.8 x 2 of 10.4 are shared, 0.54; the exact one takes the box."""
    labels, positives, _ = match_anchors(anchors, [CAR], labelled([3.2, 0.0, 0, 4, 2, 1.5, 0, 1]))
    row = 5 * 12
    assert labels[0, (row + 3) * 4] == 1
    assert labels[0, (row + 2) * 4] == -1
    assert labels[0, (row + 4) * 4] == 1  # 0.8 m: 3.2 x 2 of 9.6, 0.67
    assert labels[0, (row + 1) * 4] == 0
    assert set(positives.tolist()) == {(row + 3) * 4, (row + 4) * 4}


def test_classes_do_not_compete(anchors):
    both = labelled([3.0, 0, 0, 4, 2, 1.5, 0, 1], [3.0, 0, 0, 0.8, 0.6, 1.7, 0, 2])
    labels, _, _ = match_anchors(anchors, [CAR, PEDESTRIAN], both)
    assert labels[0, (5 * 12 + 3) * 4 : (5 * 12 + 3) * 4 + 4].tolist() == [
        1,
        0,
        2,
        2,
    ]  # pedestrians overlap 0.6 crosswise


def test_c4_padding_rows_and_empty_scenes_leave_no_trace(anchors):
    """Case C4: a zero row of the padding is no box; scenes without boxes are all background."""
    car = [3.0, 0, 0, 4, 2, 1.5, 0.0, 1]
    zero = [0.0] * 8
    batch = torch.tensor([[zero, zero, zero], [zero, car, zero], [car, zero, zero]])
    labels, positives, boxes = match_anchors(anchors, [CAR, PEDESTRIAN], batch)
    assert (labels[0] == 0).all()
    assert torch.equal(labels[1], labels[2])
    assert (boxes[:, 3:6] > 0).all()
    assert (positives // labels.shape[1]).tolist() == [1] * 3 + [2] * 3
    labels, positives, boxes = match_anchors(anchors, [CAR], torch.zeros(2, 0, 8))
    assert labels.shape == (2, 480) and (labels == 0).all() and len(positives) == len(boxes) == 0


@pytest.mark.parametrize("size", [0.0, -1.2, float("nan")])
def test_a6_a_box_without_volume_matches_nothing(anchors, size):
    """Case A6: the encoder never sees a size that has no logarithm."""
    labels, positives, _ = match_anchors(anchors, [CAR], labelled([3.0, 0, 0, size, 2, 1.5, 0, 1]))
    assert len(positives) == 0 and (labels == 0).all()


def plain_rule(overlap, one):
    """The rule, box by box and anchor by anchor: labels (A,) and owner (A,)."""
    anchors, boxes = overlap.shape
    labels, owner = np.zeros(anchors, int), np.full(anchors, -1)
    forced = {
        a
        for b in range(boxes)
        for a in range(anchors)
        if overlap[:, b].max() > 0 and overlap[a, b] == overlap[:, b].max()
    }
    for a in range(anchors):
        best = overlap[a].max() if boxes else 0.0
        if a in forced or best >= one.matched_threshold:
            labels[a], owner[a] = one.label, overlap[a].argmax()
        elif best >= one.unmatched_threshold:
            labels[a] = -1
    return labels, owner


@pytest.mark.parametrize("seed, match_height", list(itertools.product(range(4), [False, True])))
def test_the_rule_against_a_plain_loop(anchors, seed, match_height):
    boxes = random_boxes(3, 14, seed)
    sets = [CAR, PEDESTRIAN]
    labels, positives, found = match_anchors(anchors, sets, boxes, match_height)
    chosen = dict(zip(positives.tolist(), found, strict=True))
    labels = labels.view(3, 120, 4)
    for scene, one in itertools.product(range(3), sets):
        mine = boxes[scene][boxes[scene, :, 7] == one.label]
        grid = anchors[:, :, one.first : one.first + one.count]
        pairs = (volume_pairs if match_height else nearest_bev_pairs)(grid, mine)
        table = np.zeros((240, len(mine)), np.float32)
        table[pairs.anchors, pairs.boxes] = pairs.overlap
        wanted, owner = plain_rule(table, one)
        assert labels[scene, :, one.first : one.first + one.count].flatten().tolist() == wanted.tolist()
        for a in (wanted > 0).nonzero()[0]:
            place = scene * 480 + a // 2 * 4 + one.first + a % 2
            assert torch.equal(chosen[place], mine[owner[a], :7])


def test_volume_pairs_see_height(anchors):
    box = torch.tensor([[3.0, 0, 1.0, 4, 2, 1.5, 0.0]])
    pairs = volume_pairs(anchors, box)
    assert pairs.overlap.max().item() == pytest.approx(0.5 / 2.5)
    assert torch.equal(pairs.overlap, boxes_iou3d_published(anchors.view(-1, 7)[pairs.anchors], box)[:, 0])
    assert len(volume_pairs(anchors, box + torch.tensor([0, 0, 5.0, 0, 0, 0, 0])).overlap) == 0


def test_samples_have_the_wanted_share(anchors):
    car = [0.0, 0, 0, 4, 2, 1.5, 0.0, 1]
    scene = torch.tensor(car) + torch.tensor([[2.0, -3, 0, 0, 0, 0, 0, 0], [7, -3, 0, 0, 0, 0, 0, 0]])
    matching = match_anchors(anchors, [CAR, PEDESTRIAN], torch.stack([scene, scene + torch.eye(8)[1]]))
    assert (matching.labels > 0).sum(1).tolist() == [6, 6]
    sampled = sample_anchors(matching, 0.25, 16, torch.Generator().manual_seed(0))
    assert (sampled.labels > 0).sum(1).tolist() == [4, 4]
    assert (sampled.labels == 0).sum(1).tolist() == [12, 12]
    kept = sampled.labels.flatten()[sampled.positives]
    assert len(kept) == len(sampled.boxes) == 8 and (kept > 0).all()
    known = dict(zip(matching.positives.tolist(), matching.boxes, strict=True))
    assert all(torch.equal(known[i], box) for i, box in zip(sampled.positives.tolist(), sampled.boxes, strict=True))
    again = sample_anchors(matching, 0.25, 16, torch.Generator().manual_seed(0))
    other = sample_anchors(matching, 0.25, 16, torch.Generator().manual_seed(1))
    assert torch.equal(again.labels, sampled.labels) and not torch.equal(other.labels, sampled.labels)


def test_samples_of_a_scene_without_boxes_are_background(anchors):
    matching = match_anchors(anchors, [CAR], torch.zeros(1, 0, 8))
    labels = sample_anchors(matching, 0.5, 32, torch.Generator().manual_seed(0)).labels
    assert (labels == 0).sum() == 32 and (labels == -1).sum() == 480 - 32


GRIDS = {
    "pointpillar": ((0, -39.68, -3, 69.12, 39.68, 1), (0.16, 0.16, 4), (432, 496, 1)),
    "second": ((0, -40, -3, 70.4, 40, 1), (0.05, 0.05, 0.1), (1408, 1600, 40)),
}


def kitti_anchors(name, root):
    blocks = yaml.safe_load((root / f"cfgs/kitti_models/{name}.yaml").read_text())["MODEL"]["DENSE_HEAD"]
    blocks = blocks["ANCHOR_GENERATOR_CONFIG"]
    info = DatasetInfo(("Car", "Pedestrian", "Cyclist"), ("x", "y", "z", "i"), *GRIDS[name])
    sets = [
        AnchorSet(i + 1, 2 * i, 2, block["matched_threshold"], block["unmatched_threshold"])
        for i, block in enumerate(blocks)
    ]
    return torch.cat([anchor_grid(info, block) for block in blocks], dim=2), sets


@pytest.mark.parametrize("name", ["pointpillar", "second"])
def test_recorded_targets_of_real_frames(name, shared, root):
    record = np.load(shared / "oracles/openpcdet_data/targets.npz")
    anchors, sets = kitti_anchors(name, root)
    labels, positives, boxes = match_anchors(anchors, sets, torch.from_numpy(record[f"{name}_gt_boxes"]))
    assert np.array_equal(labels.numpy(), record[f"{name}_labels"])
    assert np.array_equal(positives // labels.shape[1], record[f"{name}_pos_batch"])
    assert np.array_equal(positives % labels.shape[1], record[f"{name}_pos_anchor"])
    codes = ResidualCoder().encode(boxes, anchors.view(-1, 7)[positives % labels.shape[1]])
    torch.testing.assert_close(codes, torch.from_numpy(record[f"{name}_pos_reg_targets"]), rtol=1e-5, atol=1e-6)


def test_recorded_targets_of_made_up_boxes(shared, root):
    record = np.load(shared / "oracles/ops/anchor_targets_second.npz")
    anchors, sets = kitti_anchors("second", root)
    labels, positives, boxes = match_anchors(anchors, sets, torch.from_numpy(record["in_gt_boxes"]))
    flat = labels.flatten()
    place = flat.nonzero()[:, 0].numpy()
    assert np.array_equal(place, record["out_nonzero_flat_idx"])
    assert np.array_equal(flat[place], record["out_nonzero_labels"])
    codes = torch.zeros(labels.numel(), 7)
    codes[positives] = ResidualCoder().encode(boxes, anchors.view(-1, 7)[positives % labels.shape[1]])
    torch.testing.assert_close(
        codes[place], torch.from_numpy(record["out_reg_targets_at_nonzero"]), rtol=1e-5, atol=1e-6
    )
