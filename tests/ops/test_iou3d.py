"""Overlap of rotated boxes: hand arithmetic, a naive polygon clipper, properties, recorded values."""

import math

import numpy as np
import pytest
import torch
from ops_cases import box, random_boxes
from torch import library

from pcdet.ops.iou3d import (
    boxes_collide_bev,
    boxes_iou3d,
    boxes_iou3d_published,
    boxes_iou_bev,
    boxes_overlap_bev,
    boxes_overlap_published,
    cpu,
    reference,
)

DOORS = ("boxes_overlap_bev", "boxes_iou_bev", "boxes_iou3d")
BOTH = (boxes_overlap_published, reference.boxes_overlap_published)


def corners(rect):
    x, y, _, dx, dy, _, heading = (float(v) for v in rect)
    cos, sin = math.cos(heading), math.sin(heading)
    local = [(dx / 2, -dy / 2), (dx / 2, dy / 2), (-dx / 2, dy / 2), (-dx / 2, -dy / 2)]
    return [(x + u * cos - v * sin, y + u * sin + v * cos) for u, v in local]


def clip(polygon, start, end):
    """Sutherland-Hodgman: the part of the polygon left of the line from start to end."""

    def side(p):
        return (end[0] - start[0]) * (p[1] - start[1]) - (end[1] - start[1]) * (p[0] - start[0])

    kept = []
    for p, q in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        if side(p) >= 0:
            kept.append(p)
        if side(p) * side(q) < 0:
            t = side(p) / (side(p) - side(q))
            kept.append((p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])))
    return kept


def naive_overlap(a, b):
    polygon, other = corners(a), corners(b)
    for start, end in zip(other, other[1:] + other[:1], strict=True):
        polygon = clip(polygon, start, end)
    edges = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return sum(p[0] * q[1] - p[1] * q[0] for p, q in edges) / 2


@pytest.mark.parametrize("shift, expected", [(0.0, 1.0), (1.0, 1 / 3), (2.0, 0.0), (3.0, 0.0)])
def test_iou_of_two_shifted_squares(shift, expected):
    a, b = box(dx=2, dy=2), box(x=shift, dx=2, dy=2)
    assert boxes_iou_bev(a, b).item() == pytest.approx(expected, abs=1e-6)
    assert boxes_iou3d(a, b).item() == pytest.approx(expected, abs=1e-6)


def test_iou3d_counts_the_shared_height():
    a, b = box(dz=2.0), box(z=1.0, dz=2.0)
    assert boxes_iou_bev(a, b).item() == pytest.approx(1.0)
    assert boxes_iou3d(a, b).item() == pytest.approx(1 / 3)
    assert boxes_iou3d(a, box(z=2.0, dz=2.0)).item() == 0.0  # one stands on the other


def test_a1_a_box_overlaps_itself_wholly_at_every_yaw():
    yaw = torch.arange(-math.pi, math.pi, 0.001)
    boxes = torch.tensor([[-48.0, 18.0, 0.0, 6.5, 2.7, 1.5, 0.0]]).repeat(len(yaw), 1)
    boxes[:, 6] = yaw
    boxes = torch.cat([boxes, torch.tensor([[-48.0, 18.0, 0.0, 6.5, 2.7, 1.5, math.pi - 0.006]])])
    for move in (0.0, 1e-7, 1e-6, 1e-5, 1e-4):
        moved = boxes + torch.tensor([move, -move, 0, 0, 0, 0, move])
        for one, other in zip(boxes.split(500), moved.split(500), strict=True):
            same = boxes_iou_bev(one, other).diagonal()
            assert same.min() >= 0.999
            assert (same - boxes_iou_bev(one.double(), other.double()).diagonal()).abs().max() < 1e-4


@pytest.mark.parametrize(
    "a, b, expected",
    [
        (box(dx=2, dy=2, heading=math.pi / 4), box(dx=2, dy=2, heading=-math.pi / 4), 1.0),
        (box(heading=0.3), box(heading=0.3 + math.pi), 1.0),
        (box(heading=0.3), box(heading=0.3 + math.pi / 2), 1 / 3),
        (box(dx=2, dy=2), box(dx=2, dy=2, heading=math.pi / 4), 0.70711),
    ],
)
def test_a2_special_yaws(a, b, expected):
    assert boxes_iou_bev(a, b).item() == pytest.approx(expected, abs=1e-5)


def test_a3_distant_boxes_do_not_overlap_at_all():
    a = random_boxes(200)
    b = random_boxes(200, seed=1)
    b[:, 0] += 75
    assert (boxes_iou_bev(a, b) == 0).all() and (boxes_iou3d(a, b) == 0).all()


@pytest.mark.parametrize("yaw", [0.0, 0.3, 1.2, 2.9])
def test_a5_the_angle_turns_both_boxes_the_same_way(yaw):
    along = box(x=2 * math.cos(yaw), y=2 * math.sin(yaw), heading=yaw)
    assert boxes_iou_bev(box(heading=yaw), along).item() == pytest.approx(1 / 3, abs=1e-6)
    assert boxes_iou_bev(box(heading=yaw), box(dx=8, dy=4, heading=yaw)).item() == pytest.approx(0.25)
    touching = box(x=4 * math.cos(yaw), y=4 * math.sin(yaw), heading=yaw)
    assert boxes_iou_bev(box(heading=yaw), touching).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("size", [0.0, -1.2, math.nan])
@pytest.mark.parametrize("column", [3, 4, 5])
def test_a6_boxes_without_extent_overlap_nothing(size, column):
    flat = box()
    flat[0, column] = size
    both = torch.cat([flat, box()])
    assert boxes_iou3d(both, both).tolist() == [[0.0, 0.0], [0.0, 1.0]]
    if column < 5:
        assert boxes_iou_bev(both, both).tolist() == [[0.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("column", range(7))
def test_a_nan_never_spreads(column):
    broken = box()
    broken[0, column] = math.nan
    for module in (cpu, reference):
        assert module.boxes_iou3d(broken, torch.cat([broken, box()])).tolist() == [[0.0, 0.0]]


def test_matches_naive_clipping():
    a, b = random_boxes(40, spread=4), random_boxes(50, seed=1, spread=4)
    expected = torch.tensor([[naive_overlap(p, q) for q in b.tolist()] for p in a.tolist()])
    assert (expected > 0.1).sum() > 500
    assert torch.allclose(boxes_overlap_bev(a, b), expected, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", DOORS)
def test_kernel_matches_reference(name):
    assert cpu.NOISE == reference.NOISE
    a, b = random_boxes(150, spread=6), random_boxes(130, seed=1, spread=6)
    b[:20] = a[:20]
    b[20:40] = a[20:40] + torch.tensor([0, 0, 0, 0, 0, 0, math.pi / 2])
    assert torch.allclose(getattr(cpu, name)(a, b), getattr(reference, name)(a, b), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", (*DOORS, "boxes_overlap_published"))
@pytest.mark.parametrize("n, m", [(0, 0), (0, 3), (3, 0)])
def test_no_boxes(name, n, m):
    for module in (cpu, reference):
        assert getattr(module, name)(random_boxes(n), random_boxes(m)).shape == (n, m)


def test_is_symmetric_and_at_most_one():
    boxes = random_boxes(120, spread=5)
    for iou in (boxes_iou_bev(boxes, boxes), boxes_iou3d(boxes, boxes)):
        assert torch.allclose(iou, iou.T, atol=1e-6)
        assert torch.allclose(iou.diagonal(), torch.ones(120))
        assert 0 <= iou.min() and iou.max() <= 1


def test_moving_turning_and_flipping_change_nothing():
    a, b = random_boxes(60, spread=4).double(), random_boxes(60, seed=1, spread=4).double()
    expected = boxes_iou3d(a, b)
    shift = torch.tensor([30.0, -12.0, 3.0, 0, 0, 0, 0])
    assert torch.allclose(boxes_iou3d(a + shift, b + shift), expected, atol=1e-6)
    turn = torch.tensor([[math.cos(0.7), math.sin(0.7)], [-math.sin(0.7), math.cos(0.7)]], dtype=torch.float64)
    turned = [torch.cat([x[:, :2] @ turn, x[:, 2:6], x[:, 6:] + 0.7], dim=1) for x in (a, b)]
    assert torch.allclose(boxes_iou3d(*turned), expected, atol=1e-6)
    flipped = b.clone()
    flipped[:, 6] += math.pi
    assert torch.allclose(boxes_iou3d(a, flipped), expected, atol=1e-6)


def test_a_contained_box_shares_its_own_area():
    outer = box(dx=20, dy=16, heading=0.4)
    inner = random_boxes(50, spread=2)
    area = inner[:, 3] * inner[:, 4]
    assert torch.allclose(boxes_overlap_bev(inner, outer)[:, 0], area, rtol=1e-6)
    assert torch.allclose(boxes_iou_bev(outer, inner)[0], area / 320, rtol=1e-5)


def test_five_millimetres_apart_is_apart():
    """OpenPCDet widens boxes by 1 cm when it looks for shared corners; only the published overlap does here."""
    assert boxes_iou_bev(box(), box(x=4.005)).item() == 0.0


@pytest.mark.parametrize("overlap", BOTH)
@pytest.mark.parametrize(
    "x, y, expected",
    [
        (1.005, 0.0, 0.005),  # no edges cross; two corners of each lie within 1 cm of the other: 5 mm by 1 m
        (0.5, 0.0, 0.5),
        (0.5, 0.5, 0.25),
        (1.5, 0.0, 0.0),
        (1.011, 0.0, 0.0),
        (1.005, 0.5, 0.0),  # one corner of each: two vertices
        (0.995, 0.0, 0.005),
    ],
)
def test_published_overlap_of_unit_squares(overlap, x, y, expected):
    a, b = box(dx=1, dy=1), box(x=x, y=y, dx=1, dy=1)
    assert overlap(a, b).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("overlap", BOTH)
def test_published_overlap_of_nearly_parallel_thin_boxes_is_finite(overlap):
    """Where the sides of a crossing differ by less than 1e-8 square metres it comes from a determinant."""
    thin = torch.tensor([[0, 0, 0, 1e-2, 1e-5, 1, heading] for heading in (0.0, 1e-7, 1e-4, 0.3, 1.5)])
    assert overlap(thin, thin).isfinite().all()
    assert overlap(thin, thin).max() < 1e-2 * 1e-2


@pytest.mark.parametrize("overlap", BOTH)
def test_published_overlap_ignores_nan_and_the_missing(overlap):
    broken = box().repeat(7, 1)
    broken[torch.arange(7), torch.arange(7)] = math.nan
    broken = broken[[0, 1, 3, 4, 6]]  # z and dz are not read
    assert (overlap(broken, torch.cat([broken, box()])) == 0).all()
    assert (overlap(torch.zeros(3, 7), torch.zeros(3, 7)) == 0).all()


def test_published_overlap_of_kernel_and_reference_is_the_same_to_the_bit():
    a, b = random_boxes(150, spread=6), random_boxes(130, seed=1, spread=6)
    b[:20] = a[:20]
    b[20:40] = a[20:40] + torch.tensor([0, 0, 0, 0, 0, 0, math.pi / 2])
    b[40:60] = a[40:60] + torch.tensor([0.004, 0.004, 0, 0.01, 0, 0, 0])
    for name in ("MARGIN", "PARALLEL", "ROUNDING"):
        assert getattr(cpu, name) == np.float32(getattr(reference, name))
    assert np.array_equal(cpu.outlines(a)[:, :15], reference.outlines(a).numpy()[:, :15])
    found, expected = cpu.boxes_overlap_published(a, b), reference.boxes_overlap_published(a, b)
    assert torch.allclose(found, expected, atol=2e-6, rtol=0) and (found == expected).float().mean() > 0.99


def test_published_overlap_is_a_registered_operator():
    library.opcheck(torch.ops.pcdet.boxes_overlap_published.default, (random_boxes(6), random_boxes(4)))


def test_published_overlap_is_near_the_exact_one():
    """Its error is at most what a seam of 1 cm holds; nothing is lost by the reject of pairs that are far apart."""
    a, b = random_boxes(150, spread=6), random_boxes(150, seed=1, spread=6)
    wider = torch.tensor([0, 0, 0, 0.0201, 0.0201, 0, 0])
    published = boxes_overlap_published(a, b)
    assert (published <= boxes_overlap_bev(a + wider, b + wider)).all()
    assert (published - boxes_overlap_bev(a, b)).abs().max() < 0.1


@pytest.mark.parametrize("door", [boxes_overlap_bev, boxes_overlap_published, boxes_iou_bev, boxes_iou3d])
def test_more_columns_are_not_read_and_fewer_are_an_error(door):
    a, b = random_boxes(5), random_boxes(4, seed=1)
    assert torch.equal(door(torch.cat([a, torch.ones(5, 2)], dim=1), b), door(a, b))
    with pytest.raises(ValueError, match=r"boxes_b must have the shape \(M, 7\+\)"):
        door(a, b[:, :6])
    with pytest.raises(ValueError, match="boxes_a"):
        door(a[None], b)


def test_boxes_on_two_devices_are_an_error():
    with pytest.raises(ValueError, match="move them to one device"):
        boxes_iou_bev(random_boxes(2), random_boxes(2).to("meta"))


def test_no_gradient_flows():
    assert not boxes_iou3d(random_boxes(3).requires_grad_(), random_boxes(3)).requires_grad


def test_recorded_overlaps(shared):
    """Equal to the recorded values except where the 1 cm margin or a box without extent decides."""
    data = np.load(shared / "oracles" / "ops" / "boxes_iou.npz")
    a, b = torch.from_numpy(data["in_boxes_a"]), torch.from_numpy(data["in_boxes_b"])
    overlap = boxes_overlap_bev(a, b).numpy()
    assert np.abs(overlap - data["out_overlap_bev"]).max() < 0.025
    solid = (data["in_boxes_a"][:, 3:6] > 0.01).all(1)[:, None] & (data["in_boxes_b"][:, 3:6] > 0.01).all(1)
    for found, key in ((boxes_iou_bev(a, b), "out_iou_bev"), (boxes_iou3d(a, b), "out_iou3d")):
        error = np.abs(found.numpy() - data[key])[solid]
        assert error.max() < 0.006
        assert (error < 1e-4).mean() > 0.99


@pytest.mark.parametrize("overlap", BOTH)
def test_recorded_published_overlaps(shared, overlap):
    """To the last bits, also where exact geometry is up to 2 dm2 away: the cosine of another library differs in one."""
    data = np.load(shared / "oracles" / "ops" / "boxes_iou.npz")
    a, b = torch.from_numpy(data["in_boxes_a"]), torch.from_numpy(data["in_boxes_b"])
    recorded = data["out_overlap_bev"]
    found = overlap(a, b).numpy()
    assert np.abs(found - recorded).max() < 2e-6
    assert (found == recorded).mean() > 0.98
    assert (np.abs(boxes_overlap_bev(a, b).numpy() - recorded) > 1e-4).sum() > 30


def test_recorded_published_volumes(shared):
    data = np.load(shared / "oracles" / "ops" / "boxes_iou.npz")
    a, b = torch.from_numpy(data["in_boxes_a"]), torch.from_numpy(data["in_boxes_b"])
    error = np.abs(boxes_iou3d_published(a, b).numpy() - data["out_iou3d"])
    assert error.max() < 2e-6


@pytest.mark.parametrize("shift, expected", [((0, 0, 0), 1.0), ((1, 0, 0), 1 / 3), ((0, 0, 1), 1 / 3), ((0, 0, 2), 0)])
def test_published_volumes_by_hand(shift, expected):
    box = torch.tensor([[0.0, 0, 0, 2, 2, 2, 0]])
    moved = box + torch.tensor([*shift, 0, 0, 0, 0])
    assert boxes_iou3d_published(box, moved).item() == pytest.approx(expected, abs=1e-6)


def test_published_volumes_of_nothing_and_of_no_numbers():
    boxes = random_boxes(3)
    boxes[1, 4], boxes[2, 3:6] = math.nan, 0
    found = boxes_iou3d_published(boxes, boxes)
    assert found.isfinite().all() and not found[1].any() and not found[2].any()
    assert boxes_iou3d_published(boxes[:0], boxes).shape == (0, 3)


def test_recorded_geometry_of_random_boxes(shared):
    data = np.load(shared / "oracles" / "openpcdet_data" / "coders_geometry.npz")
    a, b = torch.from_numpy(data["geo_a"]), torch.from_numpy(data["geo_b"])
    for found, key in ((boxes_iou_bev(a, b), "boxes_bev_iou_cpu"), (boxes_iou3d(a, b), "boxes_iou3d_gpu")):
        error = np.abs(found.numpy() - data[key])
        assert error.max() < 0.006 and (error < 1e-4).mean() > 0.99


@pytest.mark.parametrize("n, m, spread", [(0, 0, 5), (0, 4, 5), (4, 0, 5), (15, 30, 20), (40, 80, 60)])
def test_boxes_collide_where_they_overlap_others_or_each_other(n, m, spread):
    boxes, others = random_boxes(n + m, spread=spread).split([n, m])
    own = boxes_iou_bev(boxes, boxes).fill_diagonal_(0) if n else torch.zeros(0, 0)
    expected = torch.cat([own, boxes_iou_bev(boxes, others)], dim=1).gt(0).any(dim=1)
    for module in (cpu, reference):
        assert torch.equal(module.boxes_collide_bev(boxes, others), expected)
    assert torch.equal(boxes_collide_bev(boxes, others), expected)
    found = boxes_collide_bev(boxes.numpy(), others.double().numpy())
    assert isinstance(found, np.ndarray) and found.tolist() == expected.tolist()


def test_touching_or_empty_boxes_do_not_collide():
    unit = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0]])
    beside, over, flat = (unit.clone() for _ in range(3))
    beside[0, 0], over[0, 0], flat[0, 3] = 1.0, 0.99, 0.0
    flat_and_nan = torch.cat([flat, torch.full((1, 7), math.nan)])
    for other, expected in ((beside, [False]), (over, [True]), (flat_and_nan, [False])):
        assert boxes_collide_bev(unit, other).tolist() == expected
    assert boxes_collide_bev(torch.cat([unit, over]), unit[:0]).tolist() == [True, True]
