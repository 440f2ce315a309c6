"""The Triton kernels of vector pooling against the reference."""

import numpy as np
import pytest
import torch
from ops_cases import generator, lattice, lidar_cloud

from pcdet.ops.vector_pool import local_three_nn, voxel_pool

SCENES = {
    "several": ([90, 0, 60], [9, 4, 20]),
    "one": ([150], [33]),
    "one point": ([1], [5]),
    "no points": ([0], [5]),
    "no centres": ([20], [0]),
    "no scenes": ([], []),
}


def scene(name, device):
    counts, centre_counts = SCENES[name]
    support, centres = lidar_cloud(sum(counts)), lidar_cloud(sum(centre_counts), seed=1)
    lengths = [torch.tensor(c, dtype=torch.int64, device=device) for c in (counts, centre_counts)]
    moved = (support.to(device), lengths[0], centres.to(device), lengths[1])
    return moved, (support, counts, centres, centre_counts)


def same(found, expected) -> bool:
    return all(torch.equal(a.cpu(), b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("cap, ball", [(1000, False), (3, True)])
def test_three_nearest_neighbours(rooms, device, name, cap, ball):
    kernel, reference = rooms("vector_pool")
    moved, plain = scene(name, device)
    offsets = torch.randn(5, 3, generator=generator())
    around = plain[2][:, None] + offsets  # (M, 5, 3)
    found = kernel.three_nn(*moved, around.to(device), 7.0, cap, ball)
    assert same(found, reference.three_nn(*plain, around, 7.0, cap, ball))


def test_ties_go_to_the_first_point(rooms, device):
    kernel, reference = rooms("vector_pool")
    grid = lattice(4)
    centres, count = grid[20:23], torch.tensor([3], device=device)
    around = centres[:, None] + torch.tensor([[0.5, 0.5, 0.5], [0, 0, 0]])
    moved = (grid.to(device), torch.tensor([len(grid)], device=device), centres.to(device), count)
    found = kernel.three_nn(*moved, around.to(device), 2.0, 1000, False)
    assert same(found, reference.three_nn(grid, [len(grid)], centres, [3], around, 2.0, 1000, False))


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("members, cap", [("all_members", -1), ("all_members", 4), ("first_members", -1)])
@pytest.mark.parametrize("ball", [False, True])
def test_members_of_cells(rooms, device, name, members, cap, ball):
    kernel, reference = rooms("vector_pool")
    moved, plain = scene(name, device)
    found = getattr(kernel, members)(*moved, (3, 2, 3), 8.0, cap, ball)
    assert same(found, getattr(reference, members)(*plain, (3, 2, 3), 8.0, cap, ball))


def test_only_the_cells_that_are_filled_first(rooms, device):
    kernel, reference = rooms("vector_pool")
    moved, plain = scene("several", device)
    found = kernel.first_members(*moved, (3, 2, 3), 20.0, 4, False)
    assert same(found, reference.first_members(*plain, (3, 2, 3), 20.0, 4, False))


def test_points_on_the_borders_of_cells(rooms, device):
    kernel, reference = rooms("vector_pool")
    grid = lattice(5)
    moved = (grid.to(device), torch.tensor([125], device=device), grid[60:64].to(device), torch.tensor([4]).to(device))
    for members in ("all_members", "first_members"):
        found = getattr(kernel, members)(*moved, (2, 2, 2), 2.0, -1, False)
        assert same(found, getattr(reference, members)(grid, [125], grid[60:64], [4], (2, 2, 2), 2.0, -1, False))


def recorded(shared, device):
    data = np.load(shared / "oracles" / "ops" / "vector_pool.npz")
    keys = ("xyz", "xyz_cnt", "new_xyz", "new_xyz_cnt")
    support, counts, centres, centre_counts = (torch.from_numpy(data[f"in_{key}"]).to(device) for key in keys)
    return data, (support, counts.long()), centres, centre_counts.long()


@pytest.mark.parametrize("distance, samples, kind, multiplier", [(0.6, -1, 0, 2.0), (0.4, 3, 1, 1.0)])
def test_recorded_three_neighbours(shared, through_triton, distance, samples, kind, multiplier):
    data, support, centres, counts = recorded(shared, through_triton)
    around = torch.from_numpy(data["in_grid_centers"]).to(through_triton)
    found = local_three_nn(*support, centres, around, counts, distance * multiplier, samples, kind)
    key = f"{distance}_{samples}_{kind}_{multiplier}"
    assert np.array_equal(found[1].cpu(), data[f"out_tnn_idx_{key}"])
    assert np.allclose(found[0].cpu(), data[f"out_tnn_dist_{key}"], rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    "voxels, distance, channels, samples, kind, first",
    [("333", 1.0, 2, -1, 0, 0), ("333", 1.0, 3, 32, 0, 1), ("222", 0.8, 6, 5, 1, 0), ("231", 1.2, 2, -1, 1, 1)],
)
def test_recorded_pools(shared, through_triton, voxels, distance, channels, samples, kind, first):
    """The recorded operator folds channels itself: by their sum, or by the last of them where it takes one point."""
    data, support, centres, counts = recorded(shared, through_triton)
    features = torch.from_numpy(data["in_features"]).to(through_triton).requires_grad_()
    folded = features.view(len(features), -1, channels)
    folded = folded[:, -1] if first else folded.sum(dim=1)
    shape, method = [int(number) for number in voxels], "first" if first else "avg"
    pooled = voxel_pool(*support, folded, centres, counts, shape, distance, samples, kind, method)
    key = f"{voxels}_{distance}_{channels}_{samples}_{kind}_{first}"
    assert np.array_equal(pooled.counts.cpu(), data[f"out_cnt_{key}"])
    assert np.allclose(pooled.offsets.cpu().flatten(1), data[f"out_local_{key}"], rtol=0, atol=1e-6)
    assert np.allclose(pooled.features.detach().cpu().flatten(1), data[f"out_feat_{key}"], rtol=0, atol=1e-6)
    upstream = torch.arange(pooled.features.numel(), dtype=torch.float64).cos().float()
    pooled.features.flatten().backward(upstream.to(through_triton))
    own = slice(-channels, None) if first else slice(None)  # the other folds get the gradient as well there
    assert np.allclose(features.grad.cpu()[:, own], data[f"out_grad_{key}"][:, own], rtol=0, atol=1e-6)
