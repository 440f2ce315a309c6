"""The Triton kernels of furthest point sampling against the reference: held in registers, and by buckets."""

import numpy as np
import pytest
import torch
from ops_cases import generator, lattice, lidar_cloud

from pcdet.ops.furthest_point_sampling import (
    furthest_point_sample,
    furthest_point_sample_stack,
    sector_furthest_point_sample,
)


@pytest.fixture(params=["held", "bucketed"])
def room(request, rooms, monkeypatch):
    """The operator's Triton module, forced to one of its two forms, and the reference."""
    kernel, reference = rooms("furthest_point_sampling")
    if request.param == "bucketed":
        monkeypatch.setattr(kernel, "HELD", 0)
        monkeypatch.setattr(kernel, "BUCKET", 32)
    return kernel, reference


CLOUDS = {
    "lidar": lidar_cloud(190),
    "lattice": lattice(5),  # ties: the lowest index wins
    "one point": torch.tensor([[1.0, 2, 3]]),
    "one place": torch.ones(70, 3),
    "line": torch.randn(90, 3, generator=generator()) * torch.tensor([1.0, 0, 0]),
    "huge": lidar_cloud(60) * 1e30,  # squares overflow
}


@pytest.mark.parametrize("name", CLOUDS)
def test_equal_clouds(room, device, name):
    points = torch.stack([CLOUDS[name], CLOUDS[name].flip(0)])
    kernel, reference = room
    for wanted in (0, 1, 33):  # also more samples than points
        found = kernel.sample_batch(points.to(device), wanted)
        assert found.dtype == torch.int64 and torch.equal(found.cpu(), reference.sample_batch(points, wanted))


@pytest.mark.parametrize(
    "counts, samples", [([100, 0, 1, 40], [20, 0, 3, 41]), ([5, 135], [0, 9]), ([0, 0], [0, 0]), ([], [])]
)
def test_stacked_clouds(room, device, counts, samples):
    points = lidar_cloud(sum(counts))
    kernel, reference = room
    found = kernel.sample_stack(points.to(device), counts, samples)
    assert found.dtype == torch.int64 and torch.equal(found.cpu(), reference.sample_stack(points, counts, samples))


def test_no_clouds(room, device):
    assert room[0].sample_batch(torch.zeros(0, 5, 3, device=device), 3).shape == (0, 3)


def test_no_bound_is_too_high(rooms, device, monkeypatch):
    """Small buckets of points whose distances differ in the last bits: one visit too few would show."""
    kernel, reference = rooms("furthest_point_sampling")
    monkeypatch.setattr(kernel, "HELD", 0)
    monkeypatch.setattr(kernel, "BUCKET", 16)
    points = torch.randn(1, 120, 3, generator=generator()) * 1e-3 + torch.tensor([40.0, -9, 1])
    assert torch.equal(kernel.sample_batch(points.to(device), 120).cpu(), reference.sample_batch(points, 120))


def test_sectors(through_triton, monkeypatch):
    points = lidar_cloud(150)  # in front of the scanner: the third sector stays empty
    found = sector_furthest_point_sample(points[:, [1, 0, 2]].to(through_triton), 30, 3)
    monkeypatch.undo()  # the CPU's own kernel
    assert torch.equal(found.cpu(), sector_furthest_point_sample(points[:, [1, 0, 2]], 30, 3))


def test_recorded_samples(shared, through_triton):
    """The recorded kernel breaks ties differently, so points are compared where points coincide."""
    data = np.load(shared / "oracles" / "ops" / "fps.npz")
    points = torch.from_numpy(data["in_xyz"])
    found = furthest_point_sample(points.to(through_triton), 128).cpu()
    recorded = torch.from_numpy(data["out_batch_xyz_128"]).long()
    for cloud, ours, theirs in zip(points, found, recorded, strict=True):
        assert torch.equal(cloud[ours], cloud[theirs])
    same = furthest_point_sample(torch.from_numpy(data["in_same"]).to(through_triton), 5)
    assert same.tolist() == data["out_batch_same_5"].tolist()


def test_recorded_samples_of_stacked_scenes(shared, through_triton):
    data = np.load(shared / "oracles" / "ops" / "fps.npz")
    points = torch.from_numpy(data["in_stack_xyz"]).to(through_triton)
    found = furthest_point_sample_stack(points, data["in_stack_cnt"].tolist(), 30).cpu().view(3, 30)
    recorded = torch.from_numpy(data["out_stack_int"]).view(3, 30).long()
    assert torch.equal(found[[0, 2]], recorded[[0, 2]]) and torch.equal(found[1, :2], recorded[1, :2])
