"""The Triton kernel of the voxel query against the reference: with a table of the grid, and with sorted keys."""

import numpy as np
import pytest
import torch
from ops_cases import generator

from pcdet.ops.voxel_query import voxel_query


@pytest.fixture(params=["table", "keys"])
def form(request, rooms, monkeypatch):
    kernel, reference = rooms("voxel_query")
    if request.param == "keys":
        monkeypatch.setattr(kernel, "TABLE_CELLS", 0)
    return kernel, reference


def scene(grid, voxels, places):
    """Voxels in different cells, in any order, and places in cells that may lie outside the grid."""
    g = generator()
    cells = torch.randperm(grid[0] * grid[1] * grid[2] * grid[3], generator=g)[:voxels]
    coords = torch.stack(torch.unravel_index(cells, grid), dim=1)
    at = torch.rand(places, 3, generator=g) * torch.tensor(grid[:0:-1])
    homes = torch.cat([torch.randint(0, grid[0], (places, 1), generator=g), at.floor().long().flip(1)], dim=1)
    homes[: places // 4, 1:] += torch.randint(-9, 9, (places // 4, 3), generator=g)
    return coords, coords[:, [3, 2, 1]] + 0.5, at, homes


def check(form, device, grid, scene, ranges, radius, wanted):
    coords, middles, at, homes = scene
    kernel, reference = form
    moved = (x.to(device) for x in scene)
    moved = [next(moved), next(moved), grid, next(moved), next(moved)]
    found = kernel.query(*moved, ranges, radius, wanted)
    expected = reference.query(coords, middles, grid, at, homes, ranges, radius, wanted)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.int64 and torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("ranges, radius, wanted", [([1, 2, 3], 2.5, 5), ([0, 0, 0], 9.0, 3), ([4, 4, 4], 1.5, 16)])
def test_same_as_the_reference(form, device, ranges, radius, wanted):
    grid = [2, 4, 9, 11]
    check(form, device, grid, scene(grid, 150, 40), ranges, radius, wanted)


@pytest.mark.parametrize("voxels, places", [(0, 9), (1, 9), (30, 0), (30, 1)])
def test_few_of_them(form, device, voxels, places):
    grid = [1, 2, 3, 7]
    check(form, device, grid, scene(grid, voxels, places), [1, 1, 1], 2.0, 4)


def test_the_radius_is_inclusive(form, device):
    coords = torch.tensor([[0, 0, 0, x] for x in range(5)])
    homes = torch.tensor([[0, 0, 0, 0]])
    cells = coords, coords[:, [3, 2, 1]].float(), torch.zeros(1, 3), homes
    check(form, device, [1, 1, 1, 5], cells, [0, 0, 4], 2.0, 5)


def test_places_far_outside_and_scenes_that_are_not_there_find_nothing(form, device):
    coords = torch.zeros(1, 4, dtype=torch.int64, device=device)
    homes = torch.tensor([[0, 0, 0, 10**12], [0, -(10**12), 0, 0], [7, 0, 0, 0], [-1, 0, 0, 0]], device=device)
    places = torch.zeros(4, 3, device=device)
    index, count = form[0].query(coords, places[:1], [1, 1, 1, 1], places, homes, [1, 1, 1], 9.0, 2)
    assert not index.any() and not count.any()


@pytest.mark.parametrize("ranges, radius, wanted", [((4, 4, 4), 0.8, 16), ((1, 2, 3), 1.6, 5), ((0, 0, 0), 9.0, 4)])
def test_recorded_voxels(shared, through_triton, ranges, radius, wanted):
    data = np.load(shared / "oracles" / "ops" / "voxel_query.npz")
    table = torch.from_numpy(data["in_voxel2point"]).long()  # (B, Z, Y, X)
    coords = torch.zeros(len(data["in_xyz"]), 4, dtype=torch.int64)
    coords[table[table >= 0]] = (table >= 0).nonzero()
    middles, at, cells = (torch.from_numpy(data[f"in_{key}"]) for key in ("xyz", "new_xyz", "new_coords"))
    coords, middles, at, cells = (x.to(through_triton) for x in (coords, middles, at, cells))
    found = voxel_query(coords, middles, table.shape[1:], len(table), at, cells, ranges, radius, wanted)
    index, count = (x.cpu().numpy() for x in found)
    key = "_".join(map(str, (*ranges, radius, wanted)))
    empty = data[f"out_empty_{key}"]
    assert np.array_equal(count == 0, empty) and np.array_equal(index[~empty], data[f"out_idx_{key}"][~empty])
