"""The Triton kernel of the ball query against the reference and the definition."""

import math

import numpy as np
import pytest
import torch
from ops_cases import lattice, lidar_cloud

from pcdet.ops.ball_query import ball_query, ball_query_stack


def same(found, expected) -> bool:
    return all(torch.equal(a.cpu(), b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))


def test_by_hand(through_triton):
    points = torch.tensor([[[3.0, 0, 0], [0.5, 0, 0], [0.1, 0, 0], [0, 0.4, 0]]], device=through_triton)
    index, count = ball_query(points, torch.zeros(1, 2, 3, device=through_triton) + torch.tensor([[0.0], [9]]), 0.6, 4)
    assert index.tolist() == [[[1, 2, 3, 1], [0, 0, 0, 0]]] and count.tolist() == [[3, 0]]


@pytest.mark.parametrize("radius, wanted", [(0.05, 1), (0.4, 16), (1.0, 5), (4.8, 40), (300.0, 16)])
def test_clouds_of_equal_length(rooms, device, radius, wanted):
    points = torch.stack([lidar_cloud(500), lidar_cloud(500, seed=2)])
    centres = torch.cat([points[:, 480:], points.flip(0)[:, :13] + 0.2], dim=1)
    kernel, reference = rooms("ball_query")
    found = kernel.query(points.to(device), centres.to(device), radius, wanted)
    assert same(found, reference.query(points, centres, radius, wanted))


@pytest.mark.parametrize("radius", [1.0, math.sqrt(2), 2.0])
def test_distances_that_equal_the_radius_on_a_lattice(rooms, device, radius):
    points = lattice(6)[None]
    kernel, reference = rooms("ball_query")
    found = kernel.query(points.to(device), points[:, ::3].to(device), radius, 20)
    assert same(found, reference.query(points, points[:, ::3], radius, 20))


@pytest.mark.parametrize(
    "counts, centre_counts",
    [
        ([200, 0, 100], [7, 9, 30]),  # a scene without points, among tiles that hold several scenes
        ([0, 300], [0, 46]),
        ([300], [46]),
        ([1, 299], [46, 0]),  # one point
        ([0], [5]),
        ([5], [0]),
        ([], []),
    ],
)
def test_stacked_scenes(rooms, device, counts, centre_counts):
    points, centres = lidar_cloud(sum(counts)), lidar_cloud(sum(centre_counts), seed=1)
    kernel, reference = rooms("ball_query")
    lengths = [torch.tensor(c, dtype=torch.int64, device=device) for c in (counts, centre_counts)]
    found = kernel.query_stack(points.to(device), lengths[0], centres.to(device), lengths[1], 8.0, 12)
    assert same(found, reference.query_stack(points, counts, centres, centre_counts, 8.0, 12))


def test_counts_that_promise_too_much_lead_to_no_other_memory(rooms, device):
    points = torch.zeros(10, 3, device=device)
    counts = torch.tensor([10, 10**6], device=device)
    index, count = rooms("ball_query")[0].query_stack(points, counts, points, torch.tensor([5, 5]).to(device), 1.0, 16)
    assert count.tolist() == [10] * 5 + [0] * 5 and int(index.max()) < 10


def test_points_that_are_not_finite_are_nobodys_neighbours(rooms, device):
    points = torch.tensor([[[math.nan, 0, 0], [math.inf, 0, 0], [0.1, 0, 0]]])
    centres = torch.tensor([[[0.0, 0, 0], [math.nan, 0, 0]]])
    kernel, reference = rooms("ball_query")
    found = kernel.query(points.to(device), centres.to(device), 5.0, 3)
    assert same(found, reference.query(points, centres, 5.0, 3))


@pytest.mark.parametrize("radius, wanted", [(0.5, 8), (1.5, 16), (100.0, 16)])
def test_recorded_indices(shared, through_triton, radius, wanted):
    data = np.load(shared / "oracles" / "ops" / "ball_query_group_batch.npz")
    points, centres = (torch.from_numpy(data[key]).to(through_triton) for key in ("in_xyz", "in_new_xyz"))
    index, _ = ball_query(points, centres, radius, wanted)
    assert np.array_equal(index.cpu(), data[f"out_idx_{radius}_{wanted}"])


@pytest.mark.parametrize("radius, wanted", [(0.4, 4), (0.8, 16), (5.0, 16)])
def test_recorded_indices_and_empty_balls_of_stacked_scenes(shared, through_triton, radius, wanted):
    data = np.load(shared / "oracles" / "ops" / "ball_query_group_stack.npz")
    keys = ("in_xyz", "in_xyz_cnt", "in_new_xyz", "in_new_xyz_cnt")
    points, counts, centres, centre_counts = (torch.from_numpy(data[key]).to(through_triton) for key in keys)
    index, found = ball_query_stack(points, counts, centres, centre_counts, radius, wanted)
    first_row = torch.repeat_interleave(counts.cumsum(0) - counts, centre_counts.long())
    assert np.array_equal((index - first_row[:, None]).cpu(), data[f"out_idx_{radius}_{wanted}"])
    assert np.array_equal((found == 0).cpu(), data[f"out_empty_{radius}_{wanted}"])
