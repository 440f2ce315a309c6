import math

import numpy as np
import pytest
import torch

from pcdet.models.assigners.heatmap import MapGrid, draw_peaks, gaussian_radius, peak_targets

GRID = MapGrid(shape=(10, 16), origin=(0.0, -4.0), voxel_size=(0.1, 0.1), stride=8)  # cells of 0.8 m


def targets(boxes, classes, slots=5, num_class=2, min_radius=2):
    gt_boxes = torch.tensor(boxes, dtype=torch.float32)
    return peak_targets(gt_boxes, torch.tensor(classes), num_class, GRID, slots, 0.1, min_radius)


def box(x, y, length=3.9, width=1.6, heading=0.3):
    return [x, y, -1.0, length, width, 1.5, heading, 1.0]


def test_radius_of_a_square_by_hand():
    """Of the three cases the last is the smallest: (-0.2 + sqrt(0.04 + 0.36)) / 2 of the side sum and area."""
    side = torch.tensor([10.0])
    expected = (-0.2 * 20 + math.sqrt((0.2 * 20) ** 2 + 4 * 0.4 * 0.9 * 100)) / 2
    assert gaussian_radius(side, side, 0.1).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("overlap", [0.1, 0.5, 0.7])
def test_recorded_radii(overlap, shared):
    record = np.load(shared / "oracles/ops/centernet.npz")
    length, width = torch.from_numpy(record["in_sizes"]).unbind(1)
    found = gaussian_radius(length, width, overlap)
    np.testing.assert_allclose(found, record[f"out_radius_{overlap}"], rtol=1e-6, atol=1e-6)


def test_a_peak_by_hand():
    heat = draw_peaks(torch.tensor([0]), torch.tensor([[3, 2]]), torch.tensor([1]), 1, (5, 7))
    near, corner = math.exp(-1 / (2 * 0.5**2)), math.exp(-2 / (2 * 0.5**2))
    expected = torch.zeros(1, 5, 7)
    expected[0, 1:4, 2:5] = torch.tensor([[corner, near, corner], [near, 1, near], [corner, near, corner]])
    torch.testing.assert_close(heat, expected)


def test_peaks_equal_a_loop_over_cells():
    draw = torch.Generator().manual_seed(0)
    cell = torch.stack([torch.randint(16, (20,), generator=draw), torch.randint(10, (20,), generator=draw)], dim=1)
    radius, plane = torch.randint(7, (20,), generator=draw), torch.randint(3, (20,), generator=draw)
    expected = torch.zeros(3, 10, 16)
    for (x, y), r, p in zip(cell.tolist(), radius.tolist(), plane.tolist(), strict=True):
        sigma = (2 * r + 1) / 6
        for v in range(max(y - r, 0), min(y + r + 1, 10)):
            for u in range(max(x - r, 0), min(x + r + 1, 16)):
                value = math.exp(-((u - x) ** 2 + (v - y) ** 2) / (2 * sigma**2))
                expected[p, v, u] = max(expected[p, v, u].item(), value)
    torch.testing.assert_close(draw_peaks(plane, cell, radius, 3, (10, 16)), expected)


def test_recorded_peaks(shared):
    cell = torch.tensor([[0, 0], [5, 6], [25, 20], [26, 20], [10, 39], [49, 39]])
    heat = draw_peaks(torch.zeros(6).long(), cell, torch.tensor([4, 2, 7, 3, 0, 3]), 1, (40, 50))
    np.testing.assert_allclose(heat[0], np.load(shared / "oracles/ops/centernet.npz")["out_heatmap"], atol=1e-7)


def test_a_box_by_hand():
    """Centre (4.2, -1.0) is at 5.25, 3.75 in cells."""
    found = targets([[box(4.2, -1.0)]], [[1]])
    assert found.mask.tolist() == [[True, False, False, False, False]]
    assert found.cells[0, 0] == 3 * 16 + 5
    expected = [0.25, 0.75, -1.0, math.log(3.9), math.log(1.6), math.log(1.5), math.cos(0.3), math.sin(0.3)]
    torch.testing.assert_close(found.codes[0, 0], torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert not found.codes[0, 1:].any()
    assert (found.heatmap[0, 1] == 1).nonzero().tolist() == [[3, 5]]
    assert not found.heatmap[0, 0].any()
    assert found.boxes[0, 0, 7] == 2  # the head's class, 1-based


def test_scenes_classes_and_slots_are_kept_apart():
    """Slots are filled in the order of the boxes; those of other heads take none, too many are left out."""
    rows = [box(1.0, 0.0), box(3.0, 0.0), box(5.0, 0.0), box(7.0, 0.0)]
    found = targets([rows, rows], [[0, -1, 1, 0], [-1, -1, -1, -1]], slots=2)
    assert found.mask.tolist() == [[True, True], [False, False]]
    assert (found.cells[0] % 16).tolist() == [1, 6]
    assert (found.heatmap == 1).nonzero()[:, :2].tolist() == [[0, 0], [0, 1]]
    assert not found.heatmap[1].any()


def test_boxes_without_extent_keep_their_slot_but_are_not_looked_for():
    found = targets([[box(1.0, 0.0, width=0.0), box(5.0, 0.0)]], [[0, 0]])
    assert found.mask[0].tolist() == [False, True, False, False, False]
    assert torch.isfinite(found.codes).all() and (found.heatmap == 1).sum() == 1


@pytest.mark.parametrize("x, y, cell", [(-3.0, 0.0, (0, 5)), (99.0, 99.0, (15, 9)), (12.79, -4.0, (15, 0))])
def test_centres_outside_belong_to_the_nearest_cell(x, y, cell):
    found = targets([[box(x, y)]], [[0]])
    assert found.cells[0, 0] == cell[1] * 16 + cell[0]
    assert found.heatmap[0, 0, cell[1], cell[0]] == 1
    assert (found.codes[0, 0, :2] <= 0.5).all() or x == 12.79


def test_velocities_follow_the_heading():
    found = targets([[box(1.0, 0.0)[:7] + [3.0, -2.0, 1.0]]], [[0]])
    assert found.codes[0, 0, 8:].tolist() == [3.0, -2.0]


def test_no_boxes_at_all():
    empty = peak_targets(torch.zeros(2, 0, 8), torch.zeros(2, 0).long(), 3, GRID, 4, 0.1, 2)
    assert empty.heatmap.shape == (2, 3, 10, 16) and not empty.heatmap.any() and not empty.mask.any()


def test_labels_are_left_alone():
    gt_boxes = torch.tensor([[box(1.0, 0.0), box(3.0, 1.0)]])
    before = gt_boxes.clone()
    peak_targets(gt_boxes, torch.tensor([[1, 0]]), 2, GRID, 4, 0.1, 2)
    assert torch.equal(gt_boxes, before)


def test_cells_and_metres_are_inverse():
    xy = torch.tensor([[4.2, -1.0], [0.0, -4.0]])
    torch.testing.assert_close(GRID.to_metres(GRID.to_cells(xy)), xy)
    assert GRID.to_cells(xy)[1].tolist() == [0.0, 0.0]


def test_recorded_targets_of_real_frames(shared):
    record = np.load(shared / "oracles/openpcdet_data/targets.npz")
    gt_boxes = torch.from_numpy(record["pv_rcnn_gt_boxes"])
    grid = MapGrid((200, 176), (0.0, -40.0), (0.05, 0.05), 8)
    found = peak_targets(gt_boxes, gt_boxes[..., -1].long() - 1, 3, grid, 500, 0.1, 2)
    names = ("heatmaps", "target_boxes", "inds", "masks", "target_boxes_src")
    for name, value in zip(names, found, strict=True):
        np.testing.assert_allclose(value, record[f"CenterHead_{name}_0"], atol=1e-5, err_msg=name)
