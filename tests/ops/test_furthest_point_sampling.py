"""Furthest point sampling: a naive loop, ties, degenerate clouds, recorded samples."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator, lattice, lidar_cloud

from pcdet.ops.furthest_point_sampling import cpu, furthest_point_sample, furthest_point_sample_stack, reference


def naive(points, wanted):
    """The definition, in float32 and with the lowest index at ties."""
    chosen = [0]
    while len(chosen) < wanted:
        squares = np.square(points[:, None] - points[None, chosen])  # (N, chosen, 3)
        nearest = (squares[..., 0] + squares[..., 1] + squares[..., 2]).min(axis=1)
        chosen.append(int(nearest.argmax()))
    return chosen


def test_by_hand():
    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [10, 0, 0], [5.2, 0, 0]]])
    assert furthest_point_sample(points, 4).tolist() == [[0, 2, 3, 1]]


def test_b2_a_point_near_the_origin_is_not_skipped():
    angles = torch.arange(5) * 2 * math.pi / 5
    circle = torch.stack([angles.cos(), angles.sin(), torch.zeros(5)], dim=1)
    points = torch.cat([circle, torch.full((1, 3), 0.01)])[None]
    samples = furthest_point_sample(points, 6)
    assert sorted(samples[0].tolist()) == [0, 1, 2, 3, 4, 5]
    assert torch.equal(samples, furthest_point_sample(points, 6))


def test_b2_distinct_points_come_first_and_then_valid_repeats():
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 3, 0]]).repeat(4, 1)[None, :10]
    samples = furthest_point_sample(points, 8)[0].tolist()
    assert samples == [0, 2, 1, 0, 0, 0, 0, 0]


def test_ties_go_to_the_lowest_index():
    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]]])
    assert furthest_point_sample(points, 5).tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    "points, wanted",
    [
        (torch.randn(700, 3, generator=generator()), 300),
        (lattice(9), 400),
        (lidar_cloud(1500), 200),
        (torch.randn(1500, 3, generator=generator()).round(), 120),
        (lidar_cloud(1100) * torch.tensor([1.0, 0.0, 0.0]), 100),
        (torch.cat([lidar_cloud(1100), torch.tensor([[1e6, 0, 0]])]), 100),
        (torch.randn(1200, 3, generator=generator()) * 1e-3 + 5e4, 100),
    ],
    ids=["normal", "lattice", "lidar", "duplicates", "line", "outlier", "rounded"],
)
def test_kernel_reference_and_definition_agree_exactly(points, wanted):
    """More than one bucket, exact ties, duplicates, and float32 rounding: the skipped buckets never matter."""
    expected = naive(points.numpy(), wanted)
    assert cpu.sample_batch(points[None], wanted)[0].tolist() == expected
    assert reference.sample_batch(points[None], wanted)[0].tolist() == expected


def test_each_cloud_of_a_batch_is_sampled_alone():
    points = torch.randn(3, 900, 4, generator=generator())
    samples = furthest_point_sample(points, 50)
    assert samples.shape == (3, 50) and samples.dtype == torch.int64
    for cloud, found in zip(points, samples, strict=True):
        assert torch.equal(furthest_point_sample(cloud[None, :, :3], 50)[0], found)


def test_samples_are_nested():
    points = torch.randn(1, 2000, 3, generator=generator())
    assert torch.equal(furthest_point_sample(points, 300)[:, :100], furthest_point_sample(points, 100))


@pytest.mark.parametrize("module", [cpu, reference])
def test_stacked_scenes_of_different_sizes(module):
    points, counts, wanted = torch.randn(1300, 3, generator=generator()), [700, 1, 0, 599], [90, 3, 0, 20]
    found = module.sample_stack(points, counts, wanted)
    assert found.shape == (113,)
    assert torch.equal(found[:90], furthest_point_sample(points[None, :700], 90)[0])
    assert found[90:93].tolist() == [700, 700, 700]
    assert torch.equal(found[93:], furthest_point_sample(points[None, 701:], 20)[0] + 701)


def test_stack_takes_tensors_and_one_number_for_all():
    points = torch.randn(50, 5, generator=generator())
    found = furthest_point_sample_stack(points, torch.tensor([20, 30]), 4)
    assert torch.equal(found, furthest_point_sample_stack(points, [20, 30], torch.tensor([4, 4])))


def test_empty_batches_and_no_samples():
    assert furthest_point_sample(torch.zeros(0, 5, 3), 3).shape == (0, 3)
    assert furthest_point_sample(torch.zeros(2, 5, 3), 0).shape == (2, 0)
    assert furthest_point_sample(torch.zeros(2, 0, 3), 0).shape == (2, 0)
    assert furthest_point_sample_stack(torch.zeros(0, 3), [], []).shape == (0,)
    assert furthest_point_sample_stack(torch.zeros(0, 3), [0, 0], 0).shape == (0,)
    assert furthest_point_sample(torch.zeros(1, 1, 3), 4).tolist() == [[0, 0, 0, 0]]


def test_points_that_are_not_finite_give_valid_indices():
    points = torch.randn(1, 600, 3, generator=generator())
    points[0, 5:9] = torch.tensor([math.nan, math.inf, -math.inf, 1e30])[:, None]
    samples = furthest_point_sample(points, 50)
    assert samples.min() >= 0 and samples.max() < 600


def test_bad_arguments():
    points = torch.zeros(2, 5, 3)
    with pytest.raises(ValueError, match=r"\(B, N, 3\+\)"):
        furthest_point_sample(points[0], 2)
    with pytest.raises(ValueError, match="negative"):
        furthest_point_sample(points, -1)
    with pytest.raises(ValueError, match="without points"):
        furthest_point_sample(points[:, :0], 2)
    with pytest.raises(ValueError, match="add up to the 5 points"):
        furthest_point_sample_stack(points[0], [2, 2], 1)
    with pytest.raises(ValueError, match="scene 1 has no points"):
        furthest_point_sample_stack(points[0], [5, 0], 1)


def test_recorded_samples(shared):
    """Duplicates are ties, broken differently there: the points are compared, not their indices."""
    data = np.load(shared / "oracles" / "ops" / "fps.npz")
    points = torch.from_numpy(data["in_xyz"])
    found, recorded = furthest_point_sample(points, 128), torch.from_numpy(data["out_batch_xyz_128"]).long()
    for cloud, ours, theirs in zip(points, found, recorded, strict=True):
        assert torch.equal(cloud[ours], cloud[theirs])
    assert torch.equal(found[1], recorded[1])  # no duplicates in this one
    assert furthest_point_sample(torch.from_numpy(data["in_same"]), 5).tolist() == data["out_batch_same_5"].tolist()


def test_recorded_samples_of_stacked_scenes(shared):
    """The second scene is a regular grid, full of ties that are broken differently there."""
    data = np.load(shared / "oracles" / "ops" / "fps.npz")
    found = furthest_point_sample_stack(torch.from_numpy(data["in_stack_xyz"]), data["in_stack_cnt"].tolist(), 30)
    found, recorded = found.view(3, 30), torch.from_numpy(data["out_stack_int"]).view(3, 30)
    assert torch.equal(found[[0, 2]], recorded[[0, 2]].long())
    assert torch.equal(found[1, :2], recorded[1, :2].long())
