"""Points in boxes: the boundary rule, the reference, arrays and tensors, recorded membership."""

import itertools
import math

import numpy as np
import pytest
import torch
from ops_cases import box, generator, random_boxes

from pcdet.ops.points_in_boxes import (
    cpu,
    points_in_any_box,
    points_in_boxes_index,
    points_in_boxes_mask,
    reference,
)


def turned(local, rect):
    """Points given in the frame of a box, in metres from its centre, as points of the scene (float64)."""
    x, y, z, _, _, _, heading = (float(v) for v in rect[0])
    cos, sin = math.cos(heading), math.sin(heading)
    return torch.tensor([[x + u * cos - v * sin, y + u * sin + v * cos, z + w] for u, v, w in local]).double()


def corners_and_faces(grow):
    signs = list(itertools.product((-1, 1), repeat=3)) + [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1)]
    return [(i * (2 + grow), j * (1 + grow), k * (0.75 + grow)) for i, j, k in [*signs, (0, 0, -1)]]


def test_by_hand():
    points = torch.tensor([[0.0, 0, 0], [1.9, 0.9, 0.7], [2.1, 0, 0], [0, 1.1, 0], [0, 0, -0.8]])
    assert points_in_boxes_mask(points, box()).tolist() == [[True, True, False, False, False]]
    turned_box = box(heading=math.pi / 2)
    assert points_in_boxes_mask(points, turned_box).tolist() == [[True, False, False, True, False]]


@pytest.mark.parametrize("yaw", [0.0, 0.7])
def test_b10_a_tenth_of_a_millimetre_decides_at_corners_and_faces(yaw):
    rect = box(x=3, y=-2, z=0.5, heading=yaw).double()
    for grow, inside in ((-1e-4, True), (1e-4, False)):
        assert (points_in_boxes_mask(turned(corners_and_faces(grow), rect), rect) == inside).all()


def test_b10_boxes_are_closed():
    points = torch.tensor(corners_and_faces(0.0))
    for module in (cpu, reference):
        assert module.mask(points, box(), 0.0).all()
    assert points_in_boxes_mask(points.numpy(), box().numpy()).all()


def test_the_margin_widens_x_and_y_but_not_z():
    points = torch.tensor([[2.005, 0, 0], [0, 1.005, 0], [0, 0, 0.755]])
    assert points_in_boxes_mask(points, box(), margin=1e-2).tolist() == [[True, True, False]]
    assert not points_in_boxes_mask(points, box(), margin=1e-3).any()


def test_b7_overlapping_boxes_each_hold_the_point():
    boxes = torch.cat([box(x=30), box(x=1), box()])
    points = torch.tensor([[0.5, 0, 0], [-1.5, 0, 0], [9.0, 0, 0]])
    assert points_in_boxes_mask(points, boxes).T.tolist() == [[False, True, True], [False, False, True], [False] * 3]
    assert points_in_boxes_index(points, boxes).tolist() == [1, 2, -1]


def test_b8_a_fourth_column_changes_nothing():
    points, boxes = torch.rand(50, 3, generator=generator()) * 6 - 3, random_boxes(4, spread=2)
    wide = torch.cat([points, torch.full((50, 1), 99.0)], dim=1)
    wide_boxes = torch.cat([boxes, torch.ones(4, 1)], dim=1)
    assert torch.equal(points_in_boxes_mask(wide, wide_boxes), points_in_boxes_mask(points, boxes))
    assert torch.equal(points_in_boxes_index(wide, wide_boxes), points_in_boxes_index(points, boxes))
    with pytest.raises(ValueError, match=r"points must have the shape \(N, 3\+\)"):
        points_in_boxes_mask(points[None], boxes)
    with pytest.raises(ValueError, match="boxes"):
        points_in_boxes_index(points, boxes[:, :6])


def test_b9_two_devices_or_kinds_are_an_error():
    with pytest.raises(ValueError, match="one device"):
        points_in_boxes_mask(torch.zeros(2, 3), box().to("meta"))
    with pytest.raises(ValueError, match="of one kind"):
        points_in_boxes_mask(torch.zeros(2, 3), box().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [0.0, 1e-2])
def test_kernel_matches_reference(dtype, margin):
    points = ((torch.rand(5000, 4, generator=generator()) - 0.5) * 16).to(dtype)
    boxes = random_boxes(30, spread=6).to(dtype)
    points[:30, :3] = boxes[:, :3]
    assert torch.equal(cpu.mask(points, boxes, margin), reference.mask(points, boxes, margin))
    index = cpu.index(points, boxes, margin)
    assert torch.equal(index, reference.index(points, boxes, margin))
    assert index.dtype == torch.int64 and (index[:30] >= 0).all()


@pytest.mark.parametrize("n, m", [(0, 0), (0, 3), (4, 0)])
def test_nothing_in_nothing(n, m):
    points, boxes = torch.zeros(n, 3), random_boxes(m)
    for module in (cpu, reference):
        assert module.mask(points, boxes, 0.0).shape == (m, n)
        assert module.index(points, boxes, 0.0).tolist() == [-1] * n


def test_a_nan_matches_nothing():
    points = torch.tensor([[0.0, 0, 0], [math.nan, 0, 0]])
    boxes = torch.cat([box(heading=math.nan), box(dx=math.nan), box()])
    for module in (cpu, reference):
        assert module.mask(points, boxes, 0.0).tolist() == [[False, False], [False, False], [True, False]]


def test_arrays_give_arrays_whatever_their_layout():
    points, boxes = (torch.rand(200, 4, generator=generator()) * 8 - 4), random_boxes(5, spread=3)
    mask, index = points_in_boxes_mask(points, boxes).numpy(), points_in_boxes_index(points, boxes).numpy()
    frozen = points.numpy().copy()
    frozen.flags.writeable = False
    for array in (points.numpy(), frozen, np.asfortranarray(points.numpy()), points.numpy()[::-1][::-1]):
        found = points_in_boxes_mask(array, boxes.numpy())
        assert isinstance(found, np.ndarray) and found.dtype == bool and np.array_equal(found, mask)
        assert np.array_equal(points_in_boxes_index(array, boxes.numpy()), index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count, spread", [(0, 5), (1, 5), (25, 3), (64, 20), (65, 20), (200, 1000)])
def test_any_box_is_any_of_the_mask(count, spread, dtype):
    boxes = random_boxes(count, spread=spread).to(dtype)
    points = ((torch.rand(5000, 4, generator=generator()) - 0.5) * 2.2 * spread).to(dtype)
    points[:count, :3] = boxes[:, :3]
    for margin in (0.0, 1e-2):
        expected = points_in_boxes_mask(points, boxes, margin).any(dim=0)
        assert expected[:count].all()
        assert torch.equal(cpu.any_box(points, boxes, margin), expected)
        assert torch.equal(reference.any_box(points, boxes, margin), expected)
    found = points_in_any_box(points.numpy(), boxes.numpy())
    assert isinstance(found, np.ndarray) and found.tolist() == points_in_any_box(points, boxes).tolist()


def test_any_box_of_strange_ones():
    """Corners on the border of the grid, boxes without end, turned inside out, or far away; points that are NaN."""
    rect = box(x=3, y=-2, z=0.5, heading=0.7).double()
    for grow, inside in ((-1e-4, True), (1e-4, False)):
        assert (points_in_any_box(turned(corners_and_faces(grow), rect), rect) == inside).all()
    points = torch.tensor([[0.0, 0, 0], [math.nan, 0, 0], [0, math.inf, 0], [1e7, -1e7, 0]])
    for strange, expected in (
        (box(dx=math.inf), [True, False, False, False]),
        (box(dx=-1.0), [False] * 4),
        (box(heading=math.nan), [False] * 4),
        (box(x=1e7, y=-1e7), [False, False, False, True]),
    ):
        assert points_in_any_box(points, strange).tolist() == expected
        together = torch.cat([strange, box()])
        assert points_in_any_box(points, together).tolist() == [True, *expected[1:]]


def test_recorded_membership(shared):
    data = np.load(shared / "oracles" / "ops" / "points_in_boxes.npz")
    points, boxes = data["in_points"], data["in_boxes"]
    for scene in range(2):
        index = points_in_boxes_index(points[scene], boxes[scene], margin=1e-5)
        assert np.array_equal(index, data["out_points_in_boxes_gpu"][scene])
    mask = points_in_boxes_mask(points[0], boxes[0], margin=1e-2)
    assert np.array_equal(mask, data["out_points_in_boxes_cpu"].astype(bool))


def test_recorded_membership_of_random_boxes(shared):
    data = np.load(shared / "oracles" / "openpcdet_data" / "coders_geometry.npz")
    points, boxes = data["pib_points"], data["geo_a"]
    assert np.array_equal(points_in_boxes_mask(points, boxes, 1e-2), data["points_in_boxes_cpu"].astype(bool))
    assert np.array_equal(points_in_boxes_index(points, boxes, 1e-5), data["points_in_boxes_gpu"][0])
