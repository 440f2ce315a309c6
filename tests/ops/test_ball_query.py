"""Ball query: a naive loop, empty balls, both search strategies, recorded indices."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator, lattice, lidar_cloud

from pcdet.ops.ball_query import ball_query, ball_query_stack, cpu, reference


def naive(points, centres, radius, wanted):
    """The definition, in float32."""
    indices, counts = [], []
    for centre in centres:
        d = points - centre
        found = np.flatnonzero(d[:, 0] ** 2 + d[:, 1] ** 2 + d[:, 2] ** 2 < np.float32(radius) ** 2)[:wanted]
        counts.append(len(found))
        indices.append(np.concatenate([found, np.full(wanted - len(found), found[0] if len(found) else 0)]))
    return np.array(indices), np.array(counts)


def test_by_hand():
    points = torch.tensor([[[3.0, 0, 0], [0.5, 0, 0], [0.1, 0, 0], [0, 0.4, 0]]])
    index, count = ball_query(points, torch.zeros(1, 1, 3), 0.6, 4)
    assert index.tolist() == [[[1, 2, 3, 1]]]  # in index order, then the first again
    assert count.tolist() == [[3]]


def test_b1_an_empty_ball_gives_index_0_and_count_0():
    points = torch.tensor([[[0.0, 0, 0], [0.1, 0, 0], [0, 0.1, 0]]])
    index, count = ball_query(points, torch.tensor([[[10.0, 0, 0]]]), 0.5, 4)
    assert index.tolist() == [[[0, 0, 0, 0]]] and count.tolist() == [[0]]


def test_b1_the_first_by_index_are_taken_not_the_nearest():
    points = torch.linspace(0.9, 0.0, 10)[:, None] * torch.tensor([1.0, 0, 0])
    index, count = ball_query(points[None], torch.zeros(1, 1, 3), 1.0, 4)
    assert index.tolist() == [[[0, 1, 2, 3]]] and count.item() == 4


def test_a_point_exactly_at_the_radius_is_outside():
    points = torch.tensor([[[0.5, 0, 0], [0.49999, 0, 0]]])
    assert ball_query(points, torch.zeros(1, 1, 3), 0.5, 2)[0].tolist() == [[[1, 1]]]


@pytest.mark.parametrize("radius", [0.05, 0.4, 1.0, 4.8, 300.0])
@pytest.mark.parametrize("wanted", [1, 16])
def test_kernel_reference_and_definition_agree_exactly(radius, wanted):
    points, centres = lidar_cloud(3000), torch.cat([lidar_cloud(60)[:50], lidar_cloud(40, seed=1) + 3])
    index, count = naive(points.numpy(), centres.numpy(), radius, wanted)
    for module in (cpu, reference):
        found, found_count = module.query(points[None], centres[None], radius, wanted)
        assert np.array_equal(found[0], index) and np.array_equal(found_count[0], count)


@pytest.mark.parametrize("radius", [1.0, math.sqrt(2), 2.0, 2.5])
def test_distances_that_equal_the_radius_on_a_lattice(radius):
    points = lattice(8)[None]
    for found, expected in zip(
        cpu.query(points, points, radius, 20), reference.query(points, points, radius, 20), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("share", [0.0, 1e9])
def test_both_ways_to_search_give_the_same(monkeypatch, share):
    points, centres = torch.randn(2, 900, 3, generator=generator()), torch.randn(2, 120, 3, generator=generator(1))
    expected = reference.query(points, centres, 0.7, 5)
    monkeypatch.setattr(cpu, "BALL_SHARE", share)  # 0: always the cells; large: always the scan
    for found, wanted in zip(cpu.query(points, centres, 0.7, 5), expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "cloud",
    [
        torch.zeros(300, 3),
        torch.randn(300, 3, generator=generator()) * torch.tensor([1.0, 0, 0]),
        lidar_cloud(300) * 1e4,
    ],
    ids=["one place", "a line", "sparse"],
)
def test_clouds_that_are_hard_to_grid(cloud):
    for found, expected in zip(
        cpu.query(cloud[None], cloud[None], 0.3, 8), reference.query(cloud[None], cloud[None], 0.3, 8), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("module", [cpu, reference])
def test_points_that_are_not_finite_are_nobodys_neighbour(module):
    points = torch.tensor([[[math.nan, 0, 0], [math.inf, 0, 0], [0.1, 0, 0], [3e38, 3e38, 3e38]]])
    centres = torch.tensor([[[0.0, 0, 0], [math.nan, 0, 0], [-math.inf, 0, 0], [1e30, 0, 0]]])
    index, count = module.query(points, centres, 0.5, 2)
    assert count.tolist() == [[1, 0, 0, 0]]
    assert index.tolist() == [[[2, 2], [0, 0], [0, 0], [0, 0]]]


@pytest.mark.parametrize("batch, n, s", [(0, 5, 3), (2, 0, 3), (2, 5, 0), (0, 0, 0)])
def test_empty_tensors(batch, n, s):
    for module in (cpu, reference):
        index, count = module.query(torch.zeros(batch, n, 3), torch.ones(batch, s, 3) * 9, 0.5, 4)
        assert index.shape == (batch, s, 4) and count.shape == (batch, s)
        assert not index.any() and not count.any()


def test_more_columns_are_not_read():
    points, centres = torch.randn(2, 50, 6, generator=generator()), torch.randn(2, 9, 4, generator=generator(1))
    wide, narrow = ball_query(points, centres, 1.0, 4), ball_query(points[..., :3], centres[..., :3], 1.0, 4)
    assert all(torch.equal(a, b) for a, b in zip(wide, narrow, strict=True))


def test_bad_arguments():
    points, centres = torch.zeros(2, 5, 3), torch.zeros(2, 3, 3)
    with pytest.raises(ValueError, match=r"points must have the shape \(B, N, 3\+\)"):
        ball_query(points[0], centres, 1.0, 4)
    with pytest.raises(ValueError, match="2 clouds but centres 1"):
        ball_query(points, centres[:1], 1.0, 4)
    with pytest.raises(ValueError, match="radius"):
        ball_query(points, centres, 0.0, 4)
    with pytest.raises(ValueError, match="num_samples"):
        ball_query(points, centres, 1.0, 0)
    with pytest.raises(ValueError, match="one device"):
        ball_query(points, centres.to("meta"), 1.0, 4)


@pytest.mark.parametrize("radius, wanted", [(0.5, 8), (1.5, 16), (100.0, 16)])
def test_recorded_indices(shared, radius, wanted):
    data = np.load(shared / "oracles" / "ops" / "ball_query_group_batch.npz")
    index, _ = ball_query(torch.from_numpy(data["in_xyz"]), torch.from_numpy(data["in_new_xyz"]), radius, wanted)
    assert np.array_equal(index, data[f"out_idx_{radius}_{wanted}"])


@pytest.mark.parametrize("radius, wanted", [(0.4, 4), (0.8, 16), (5.0, 16)])
def test_recorded_indices_and_empty_balls_of_stacked_scenes(shared, radius, wanted):
    data = np.load(shared / "oracles" / "ops" / "ball_query_group_stack.npz")
    counts, centre_counts = (torch.from_numpy(data[key]).long() for key in ("in_xyz_cnt", "in_new_xyz_cnt"))
    points, centres = torch.from_numpy(data["in_xyz"]), torch.from_numpy(data["in_new_xyz"])
    index, found = ball_query_stack(points, counts, centres, centre_counts, radius, wanted)
    first_row = torch.repeat_interleave(counts.cumsum(0) - counts, centre_counts)
    assert np.array_equal(index - first_row[:, None], data[f"out_idx_{radius}_{wanted}"])
    assert np.array_equal(found == 0, data[f"out_empty_{radius}_{wanted}"])


def counts_of(*lengths):
    return torch.tensor(lengths, dtype=torch.int64)


def test_stacked_scenes_by_hand():
    points = torch.tensor([[0.0, 0, 0], [0.2, 0, 0], [0.1, 0, 0], [5, 0, 0]])
    centres = torch.tensor([[0.0, 0, 0], [0, 0, 0], [5, 0, 0]])  # the second scene holds points 2 and 3
    index, found = ball_query_stack(points, counts_of(2, 2), centres, counts_of(1, 2), 0.5, 3)
    assert index.tolist() == [[0, 1, 0], [2, 2, 2], [3, 3, 3]] and found.tolist() == [2, 1, 1]


@pytest.mark.parametrize("module", [cpu, reference])
def test_empty_balls_of_stacked_scenes_give_the_first_row_of_their_scene(module):
    points = torch.zeros(5, 3)
    index, found = module.query_stack(points, [2, 0, 3, 0], torch.full((4, 3), 9.0), [1, 1, 1, 1], 1.0, 2)
    assert index.tolist() == [[0, 0], [0, 0], [2, 2], [0, 0]]  # a scene without points: any valid row
    assert not found.any()


@pytest.mark.parametrize("radius, wanted", [(0.3, 4), (1.5, 16), (300.0, 5)])
def test_each_stacked_scene_is_searched_alone(radius, wanted):
    lengths, centre_lengths = (1500, 0, 1, 700), (300, 5, 7, 290)
    points, centres = lidar_cloud(2201), lidar_cloud(602, seed=1)
    index, found = ball_query_stack(points, counts_of(*lengths), centres, counts_of(*centre_lengths), radius, wanted)
    expected = reference.query_stack(points, lengths, centres, centre_lengths, radius, wanted)
    assert torch.equal(index, expected[0]) and torch.equal(found, expected[1])
    scenes = zip(points.split(lengths), centres.split(centre_lengths), (0, 0, 1500, 1501), strict=True)
    alone = [ball_query(p[None], c[None], radius, wanted)[0][0] + start for p, c, start in scenes]
    assert torch.equal(index, torch.cat(alone))


@pytest.mark.parametrize("lengths, centre_lengths", [((), ()), ((0, 0), (0, 0)), ((0,), (3,)), ((3,), (0,))])
def test_empty_stacks(lengths, centre_lengths):
    m = sum(centre_lengths)
    index, found = ball_query_stack(
        torch.zeros(sum(lengths), 3), counts_of(*lengths), torch.ones(m, 3) * 9, counts_of(*centre_lengths), 0.5, 4
    )
    assert index.shape == (m, 4) and found.shape == (m,) and not index.any() and not found.any()


def test_bad_stacks():
    points, two = torch.zeros(5, 4), counts_of(2, 3)
    for wrong in (counts_of(2, 2), counts_of(6, -1)):
        with pytest.raises(ValueError, match=r"of points must add up to its 5 rows"):
            ball_query_stack(points, wrong, points, two, 1.0, 4)
    with pytest.raises(ValueError, match=r"of centres must add up to its 5 rows"):
        ball_query_stack(points, two, points, counts_of(1, 2), 1.0, 4)
    with pytest.raises(ValueError, match="2 scenes but centres 1"):
        ball_query_stack(points, two, points, counts_of(5), 1.0, 4)
    with pytest.raises(ValueError, match=r"\(M, 3\+\)"):
        ball_query_stack(points, two, points[None], two, 1.0, 4)
    with pytest.raises(ValueError, match="radius"):
        ball_query_stack(points, two, points, two, -1.0, 4)
