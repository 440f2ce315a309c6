"""The Triton kernels of overlap, suppression and points in boxes against the references and recorded values."""

import importlib

import numpy as np
import pytest
import torch
from ops_cases import box, generator, lidar_cloud, random_boxes

from pcdet.ops.nms import nms_bev, nms_normal_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index, points_in_boxes_mask

NAN = float("nan")
ODD = torch.cat(  # identical and touching, next to each other, without extent, and not a number
    [box(), box(), box(x=4.0), box(x=4.005), box(y=2.0, heading=1.5707964), box(heading=3.1415927), box(dx=0.0)]
    + [box(dx=-1.0), box(dz=0.0), box(heading=NAN), box(x=NAN), box(z=NAN), box(dy=NAN), box(z=1.5)]
)
BOXES = torch.cat([random_boxes(40, seed=0, spread=6.0), ODD])
OTHERS = torch.cat([random_boxes(24, seed=1, spread=6.0), ODD.flip(0)])


@pytest.fixture
def room(rooms, device, monkeypatch):
    """As ``rooms``; in the interpreter, which pays for each operation and not for each pair, with large blocks."""

    def load(operator):
        if device == "cpu":
            overlap, suppression = (importlib.import_module(f"pcdet.ops.{name}.triton") for name in ("iou3d", "nms"))
            for module, name, size in ((overlap, "ROWS", 64), (overlap, "COLUMNS", 64), (overlap, "PAIRS", 1024)):
                monkeypatch.setattr(module, name, size)
            monkeypatch.setattr(suppression, "PAIRS", 4096)
            monkeypatch.setattr(suppression, "KEPT", 16)
        return rooms(operator)

    return load


def close(found, expected):
    """To the bit, but for what the cosine of another library changes."""
    found = found.cpu()
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=0, atol=2e-6)
    assert (found != expected).sum() <= 0.02 * found.numel()


@pytest.mark.parametrize("name", ["overlap_bev", "overlap_published", "iou_bev", "iou3d"])
def test_overlaps_of_all_pairs(room, device, name):
    kernels, reference = room("iou3d")
    name = f"boxes_{name}"
    found = getattr(kernels, name)(BOXES.to(device), OTHERS.to(device))
    expected = getattr(reference, name)(BOXES, OTHERS)
    close(found, expected)
    assert (expected > 0).sum() > 300
    for rows, columns in ((0, 5), (5, 0), (1, 1)):
        close(getattr(kernels, name)(BOXES[:rows].to(device), OTHERS[:columns].to(device)), expected[:rows, :columns])


@pytest.mark.parametrize("name", ["overlap_bev", "iou3d"])
def test_overlaps_of_boxes_in_a_row(room, device, name):
    kernels, reference = room("iou3d")
    name, shifted = f"boxes_aligned_{name}", BOXES.roll(1, 0) + 0.01
    shifted = torch.cat([shifted, BOXES])
    found = getattr(kernels, name)(BOXES.repeat(2, 1).to(device), shifted.to(device))
    close(found, getattr(reference, name)(BOXES.repeat(2, 1), shifted))
    assert len(getattr(kernels, name)(BOXES[:0].to(device), BOXES[:0].to(device))) == 0


def test_boxes_that_collide(room, device):
    kernels, reference = room("iou3d")
    for boxes, others in ((BOXES, OTHERS), (BOXES[:3], BOXES[:0]), (BOXES[:0], OTHERS)):
        expected = reference.boxes_collide_bev(boxes, others)
        assert torch.equal(kernels.boxes_collide_bev(boxes.to(device), others.to(device)).cpu(), expected)
    assert 0 < reference.boxes_collide_bev(BOXES, OTHERS).sum() < len(BOXES)


def test_a_double_is_not_shortened(room, device):
    kernels, reference = room("iou3d")
    a, b = BOXES.double() + 1e-9, OTHERS.double()
    assert torch.allclose(
        kernels.boxes_aligned_overlap_bev(a[:30].to(device), b[:30].to(device)).cpu(),
        reference.boxes_aligned_overlap_bev(a[:30], b[:30]),
        rtol=1e-12,
        atol=1e-12,
    )


def test_recorded_published_overlaps_on_the_kernel(shared, room, device):
    data = np.load(shared / "oracles" / "ops" / "boxes_iou.npz")
    a, b = (torch.from_numpy(data[f"in_boxes_{side}"]).to(device) for side in "ab")
    found = room("iou3d")[0].boxes_overlap_published(a[:40], b[:40]).cpu().numpy()
    recorded = data["out_overlap_bev"][:40, :40]
    assert np.abs(found - recorded).max() < 2e-6 and (found == recorded).mean() > 0.98


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("threshold", [0.01, 0.5, 1.0])
def test_survivors(room, device, rotated, threshold):
    kernels, reference = room("nms")
    name = "greedy" if rotated else "greedy_normal"
    boxes = torch.cat([ODD, random_boxes(110, spread=6.0)])  # two words, the second one not full
    everyone = getattr(reference, name)(boxes, threshold, len(boxes))
    assert torch.equal(getattr(kernels, name)(boxes.to(device), threshold, len(boxes)).cpu(), everyone)
    assert torch.equal(getattr(kernels, name)(boxes.to(device), threshold, 20).cpu(), everyone[:20])


def test_a_chain_of_suppressions_through_several_words(room, device):
    """Each box would drop the next one, so every second one stays: the longest chain that a word can hold."""
    row = torch.cat([box(x=1.5 * k) for k in range(150)])
    for name in ("greedy", "greedy_normal"):
        kept = getattr(room("nms")[0], name)(row.to(device), 0.3, 150)
        assert kept.tolist() == list(range(0, 150, 2))


@pytest.mark.parametrize("rotated", [True, False])
def test_groups_of_which_some_are_shorter(room, device, rotated, monkeypatch):
    kernels, reference = room("nms")
    monkeypatch.setattr(kernels, "LISTED", 48 * 70)  # so that the list is filled more than once
    boxes, held = random_boxes(144, spread=5.0).view(3, 48, 7), torch.tensor([48, 20, 0])
    kept, counts = kernels.greedy_groups(boxes.to(device), held.to(device), 0.1, 12, rotated)
    for group in range(3):
        one_by_one = (reference.greedy if rotated else reference.greedy_normal)(boxes[group, : held[group]], 0.1, 12)
        assert kept[group].tolist() == one_by_one.tolist() + [-1] * (12 - len(one_by_one))
        assert counts[group] == len(one_by_one)


@pytest.mark.parametrize("door", [nms_bev, nms_normal_bev])
def test_one_box_and_none(room, through_triton, door):
    room("nms")
    assert door(box().to(through_triton), torch.ones(1, device=through_triton), 0.5).tolist() == [0]
    assert door(BOXES[:0].to(through_triton), torch.ones(0, device=through_triton), 0.5).tolist() == []


@pytest.mark.parametrize("door, key", [(nms_bev, "nms_gpu"), (nms_normal_bev, "nms_normal_gpu")])
def test_recorded_survivors(shared, room, through_triton, door, key):
    room("nms")
    data = np.load(shared / "oracles" / "ops" / "nms.npz")
    boxes, scores = (torch.from_numpy(data[f"in_{name}"]).to(through_triton) for name in ("boxes", "scores"))
    assert door(boxes, scores, 0.1).tolist() == data[f"out_{key}_0.1"].tolist()


@pytest.mark.parametrize("margin", [0.0, 1e-5, 1e-2])
def test_points_in_boxes(rooms, device, margin, monkeypatch):
    kernels, reference = rooms("points_in_boxes")
    monkeypatch.setattr(kernels, "POINTS", 512)
    edge = torch.tensor([[2.0, 1.0, 0.75], [2.0001, 1, 0], [2.005, 0, 0], [NAN, 0, 0], [0, NAN, 0], [0, 0, NAN]])
    points = torch.cat([edge, lidar_cloud(500), BOXES[:40, :3]])
    for cloud in (points, points.double(), torch.cat([points, points], dim=1)):
        for name in ("mask", "index", "any_box"):
            expected = getattr(reference, name)(cloud, BOXES, margin)
            found = getattr(kernels, name)(cloud.to(device), BOXES.to(device), margin)
            assert torch.equal(found.cpu(), expected) and found.dtype == expected.dtype
    assert kernels.index(points.to(device), BOXES[:0].to(device), margin).unique().tolist() == [-1]
    assert kernels.mask(points[:0].to(device), BOXES.to(device), margin).shape == (len(BOXES), 0)


def test_recorded_membership_on_the_kernel(shared, through_triton):
    data = np.load(shared / "oracles" / "ops" / "points_in_boxes.npz")
    points, boxes = (torch.from_numpy(data[f"in_{name}"]).to(through_triton) for name in ("points", "boxes"))
    for scene in range(2):
        index = points_in_boxes_index(points[scene], boxes[scene], margin=1e-5)
        assert index.tolist() == data["out_points_in_boxes_gpu"][scene].tolist()
    mask = points_in_boxes_mask(points[0], boxes[0], margin=1e-2).cpu().numpy()
    assert np.array_equal(mask, data["out_points_in_boxes_cpu"].astype(bool))


def test_the_doors_work_inside_a_compiled_function(room, through_triton):
    room("nms")
    torch._dynamo.reset()
    boxes, scores = random_boxes(9, spread=3.0).to(through_triton), torch.rand(9, generator=generator())

    def found(boxes, scores):
        return nms_bev(boxes, scores, 0.1).sum() + points_in_boxes_index(boxes, boxes).sum()

    scores = scores.to(through_triton)
    assert torch.compile(found, backend="eager")(boxes, scores) == found(boxes, scores)
