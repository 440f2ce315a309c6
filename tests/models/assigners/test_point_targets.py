import math

import numpy as np
import torch

from pcdet.models.assigners.point_targets import match_points, part_locations
from pcdet.models.box_coders.point_residual import PointResidualCoder
from pcdet.structures.boxes import rotate_z

WIDTH = [0.2, 0.2, 0.2]
MEAN_SIZES = [[3.9, 1.6, 1.56], [0.8, 0.6, 1.73], [1.76, 0.6, 1.73]]


def gt(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def test_labels_by_hand():
    boxes = torch.stack([gt([0, 0, 0, 4, 2, 2, 0, 2], [1, 0, 0, 4, 2, 2, 0, 1]), gt([9, 9, 9, 1, 1, 1, 0, 3], [0] * 8)])
    points = gt(
        [0, 0.0, 0.0, 0.0],  # in both boxes of scene 0: the first counts
        [0, 2.5, 0.0, 0.0],  # in the second box only
        [1, 0.0, 0.0, 0.0],  # scene 1 has no box here: its padding is none
        [0, 3.05, 0.0, 0.0],  # 5 cm outside
        [0, 0.0, 0.0, 1.0],  # on a face
        [0, 0.0, 0.0, 1.05],
        [0, 0.0, 0.0, 1.15],  # too far
        [1, 9.4, 9.4, 9.4],
    )
    found = match_points(points, boxes, WIDTH)
    assert found.labels.tolist() == [2, 1, 0, -1, 2, -1, 0, 3]
    assert found.positives.tolist() == [0, 1, 4, 7]
    assert torch.equal(found.boxes, torch.cat([boxes[0, [0, 1, 0]], boxes[1, :1]]))


def test_rows_of_scenes_may_be_mixed_and_a_scene_empty():
    draw = torch.Generator().manual_seed(0)
    points = torch.rand(200, 4, generator=draw) * 4
    points[:, 0] = torch.randint(2, (200,), generator=draw) * 2  # scenes 0 and 2
    boxes = torch.rand(3, 4, 8, generator=draw) * 3 + 0.5
    boxes[..., 7] = torch.tensor([1.0, 2, 3, 0])
    whole = match_points(points, boxes, WIDTH)
    assert (whole.labels > 0).any() and (whole.labels == -1).any()
    assert torch.equal(whole.positives, (whole.labels > 0).nonzero()[:, 0])
    assert torch.equal(whole.boxes[:, 7].long(), whole.labels[whole.positives])
    for scene in (0, 2):
        own = points[:, 0] == scene
        alone = points[own].clone()
        alone[:, 0] = 0
        assert torch.equal(match_points(alone, boxes[scene : scene + 1], WIDTH).labels, whole.labels[own])


def test_no_points_and_no_boxes():
    none = match_points(torch.zeros(0, 4), torch.ones(2, 1, 8), WIDTH)
    assert none.labels.shape == none.positives.shape == (0,) and none.boxes.shape == (0, 8)
    alone = match_points(torch.zeros(3, 4), torch.zeros(1, 0, 8), WIDTH)
    assert alone.labels.tolist() == [0, 0, 0] and len(alone.positives) == 0


def test_parts_by_hand():
    box = gt([10, 0, 0, 4, 2, 2, math.pi / 2, 1])  # its front looks along y
    points = gt([10, 0, 0], [10, 2, 1], [10.5, -1, -1])
    wanted = gt([0.5, 0.5, 0.5], [1, 0.5, 1], [0.25, 0.25, 0])
    torch.testing.assert_close(part_locations(points, box.expand(3, -1)), wanted)


def test_parts_turn_with_the_box():
    draw = torch.Generator().manual_seed(1)
    local = torch.rand(50, 3, generator=draw) - 0.5
    boxes = torch.rand(50, 7, generator=draw) * 5 + 0.1
    points = rotate_z(local * boxes[:, 3:6], boxes[:, 6]) + boxes[:, :3]
    torch.testing.assert_close(part_locations(points, boxes), local + 0.5, rtol=1e-4, atol=1e-4)
    assert part_locations(points + 1e-3, boxes).max() <= 1


def test_recorded_labels_of_real_frames(shared):
    items = np.load(shared / "oracles" / "openpcdet_data" / "items_pointrcnn.npz")
    wanted = np.load(shared / "oracles" / "openpcdet_data" / "targets.npz")
    points = [torch.from_numpy(items[f"train_{i}_points"]) for i in range(3)]
    points = torch.cat([torch.nn.functional.pad(p[:, :3], (1, 0), value=i) for i, p in enumerate(points)])
    boxes = torch.zeros(3, max(len(items[f"train_{i}_gt_boxes"]) for i in range(3)), 8)
    for i, rows in enumerate(boxes):
        rows[: len(items[f"train_{i}_gt_boxes"])] = torch.from_numpy(items[f"train_{i}_gt_boxes"])
    found = match_points(points, boxes, WIDTH)
    assert np.array_equal(found.labels.numpy(), wanted["PointHeadBox_point_cls_labels"])
    coder = PointResidualCoder(mean_size=MEAN_SIZES)
    codes = coder.encode(found.boxes[:, :7], points[found.positives, 1:], found.boxes[:, 7].long())
    recorded = wanted["PointHeadBox_point_box_labels"][found.positives.numpy()]
    np.testing.assert_allclose(codes.numpy(), recorded, rtol=1e-4, atol=1e-4)
