import math

import pytest
import torch

from pcdet.models.assigners.atss import match_anchors_adaptively
from pcdet.models.assigners.axis_aligned import AnchorSet
from pcdet.models.assigners.overlap_pairs import nearest_bev_rectangles
from pcdet.ops.iou3d import boxes_iou3d_published


def row_of_anchors(cells: int, kinds: int = 1, size=(2.0, 2.0, 2.0)) -> torch.Tensor:
    """Anchors at x = 0, 1, 2 ..., the kinds turned by quarters. (1, cells, kinds, 7)"""
    anchors = torch.zeros(1, cells, kinds, 7)
    anchors[..., 0] = torch.arange(cells).view(1, -1, 1)
    anchors[..., 3:6] = torch.tensor(size)
    anchors[..., 6] = torch.arange(kinds) * math.pi / 2
    return anchors


def match(anchors, boxes, topk, **options):
    sets = (AnchorSet(1, 0, anchors.shape[2], 0.6, 0.45),)
    return match_anchors_adaptively(anchors, sets, torch.tensor(boxes).view(1, -1, 8), topk, **options)


BOX = [3.0, 0.0, 0.0, 2.0, 2.0, 2.0, 0.0, 2.0]  # on the anchor at x = 3


def test_the_threshold_is_mean_plus_deviation():
    """Overlaps 1, 1/3, 1/3: mean 5/9, deviation sqrt(4/27) = 0.385; only the anchor itself is above 0.94."""
    found = match(row_of_anchors(7), [BOX], topk=3)
    assert found.labels.tolist() == [[0, 0, 0, 2, 0, 0, 0]]
    assert found.positives.tolist() == [3]
    assert found.boxes.tolist() == [BOX[:7]]


def test_a_box_between_anchors_finds_the_near_ones():
    """Half a cell off, the overlaps are 3/5, 3/5, 1/7, 1/7: threshold 0.371 + 0.264 = 0.635, so that none is above.

    Each box then has the first of the anchors that it overlaps most. Of 5 candidates the fifth overlaps nothing:
    mean 0.297, deviation 0.283, and 0.6 is above 0.580.
    """
    box = [2.5, *BOX[1:]]
    assert match(row_of_anchors(7), [box], topk=4).positives.tolist() == [2]
    assert match(row_of_anchors(7), [box], topk=5).positives.tolist() == [2, 3]


def test_centres_outside_the_box_are_not_chosen():
    """A long narrow box, turned: anchors along y lie in it, those beside it do not."""
    anchors = torch.zeros(5, 5, 1, 7)
    anchors[..., 0, 0], anchors[..., 0, 1] = torch.arange(5.0), torch.arange(5.0).view(-1, 1)
    anchors[..., 3:6] = torch.tensor([1.5, 1.5, 2.0])
    box = [2.0, 2.0, 0.0, 5.0, 1.0, 2.0, math.pi / 2, 1.0]
    labels = match(anchors, [box], topk=25).labels.view(5, 5)
    assert labels[:, 2].tolist() == [1] * 5  # overlap at least 0.19, all others at most 0.07
    assert labels.sum() == 5


def test_an_anchor_of_two_boxes_finds_the_one_that_it_overlaps_more():
    near, nearer = [3.3, *BOX[1:]], [3.1, *BOX[1:7], 1.0]
    found = match(row_of_anchors(7), [near, nearer], topk=3)
    # Both are forced onto the anchor at 3; the later box has it, whatever overlaps more.
    assert found.labels.tolist() == [[0, 0, 0, 1, 0, 0, 0]]
    assert match(row_of_anchors(7), [nearer, near], topk=3).labels.tolist() == [[0, 0, 0, 2, 0, 0, 0]]


def test_equally_distant_anchors_come_in_order():
    """Two kinds a cell, equally distant: of 3 candidates the first two are those of the box's own cell."""
    anchors = row_of_anchors(7, kinds=2, size=(3.0, 1.0, 2.0))
    box = [3.0, 0.0, 0.0, 3.0, 1.0, 2.0, 0.0, 1.0]
    found = match(anchors, [box], topk=2)
    assert found.positives.tolist() == [3 * 2]  # overlaps 1 and 1/5: 0.6 + 0.57 is above both, the best is forced


def test_one_candidate_has_no_deviation_and_is_forced_alone():
    assert match(row_of_anchors(7), [BOX], topk=1).positives.tolist() == [3]


def test_a_box_that_overlaps_nothing_finds_nothing():
    far = [100.0, *BOX[1:]]
    assert match(row_of_anchors(7), [far], topk=3).positives.tolist() == []


@pytest.mark.parametrize("rows", [0, 2])
def test_scenes_without_boxes(rows):
    sets = (AnchorSet(1, 0, 1, 0.6, 0.45),)
    found = match_anchors_adaptively(row_of_anchors(5), sets, torch.zeros(2, rows, 8), 3)
    assert found.labels.shape == (2, 5)
    assert not found.labels.any()
    assert found.boxes.shape == (0, 7)


def overlap_table(anchors, boxes, match_height):
    if match_height:
        return boxes_iou3d_published(anchors, boxes[:, :7])
    a, b = nearest_bev_rectangles(anchors)[:, None], nearest_bev_rectangles(boxes)[None]
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    area = [(r[..., 2:] - r[..., :2]).prod(-1) for r in (a, b)]
    shared = sides.prod(-1)
    return shared / (area[0] + area[1] - shared).clamp(min=1e-6)


def brute_force(anchors, boxes, topk, match_height):
    """Anchor by anchor: the box of each, -1 for none. Anchors (N, 7), boxes (M, 8)."""
    overlap = overlap_table(anchors, boxes, match_height)
    owner, score = [-1] * len(anchors), [0.0] * len(anchors)
    for m, box in enumerate(boxes):
        distance = (anchors[:, :3] - box[:3]).norm(dim=1).tolist()
        near = sorted(range(len(anchors)), key=lambda n: (distance[n], n))[:topk]
        values = overlap[near, m]
        for n in near:
            x, y = (anchors[n, :2] - box[:2]).tolist()
            along = x * math.cos(box[6]) + y * math.sin(box[6])
            across = y * math.cos(box[6]) - x * math.sin(box[6])
            inside = abs(along) <= box[3] / 2 and abs(across) <= box[4] / 2
            if inside and overlap[n, m] >= values.mean() + values.std() + 1e-6 and overlap[n, m] > score[n]:
                owner[n], score[n] = m, overlap[n, m].item()
    for m in range(len(boxes)):
        if overlap[:, m].max() > 0:
            owner[(overlap[:, m] == overlap[:, m].max()).nonzero()[0].item()] = m
    return owner


@pytest.mark.parametrize("match_height", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_against_brute_force(seed, match_height):
    draw = torch.Generator().manual_seed(seed)
    anchors = torch.zeros(6, 7, 5, 7)
    anchors[..., 0] = torch.arange(7.0).view(1, -1, 1)
    anchors[..., 1] = torch.arange(6.0).view(-1, 1, 1)
    anchors[..., 3:6] = torch.rand(5, 3, generator=draw) * 3 + 1
    anchors[..., 6] = torch.tensor([0, 1.57, 0, 1.57, 0])
    boxes = torch.rand(2, 6, 8, generator=draw) * torch.tensor([7, 6, 1, 3, 3, 2, 6, 0]) + torch.tensor(
        [0, 0, -0.5, 0.5, 0.5, 0.5, -3, 0]
    )
    boxes[..., 7] = torch.randint(1, 4, (2, 6), generator=draw)
    boxes[1, 4:] = 0
    sets = (AnchorSet(1, 0, 2, 0.6, 0.45), AnchorSet(2, 2, 3, 0.6, 0.45))
    found = match_anchors_adaptively(anchors, sets, boxes, 9, match_height)
    table = torch.zeros(2, 6 * 7 * 5, 7)
    table.view(-1, 7)[found.positives] = found.boxes
    for scene in range(2):
        real = boxes[scene][boxes[scene, :, 7] > 0]
        for one in sets:
            kinds = slice(one.first, one.first + one.count)
            owner = brute_force(anchors[:, :, kinds].reshape(-1, 7), real, 9, match_height)
            padded = torch.cat([real, torch.zeros(1, 8)])[owner]
            labels = found.labels[scene].view(6, 7, 5)[:, :, kinds].flatten()
            assert labels.tolist() == padded[:, 7].tolist()
            assert torch.equal(table[scene].view(6, 7, 5, 7)[:, :, kinds].reshape(-1, 7), padded[:, :7])
    assert len(found.positives) > 12
