"""Vector pooling: a naive loop, ties, caps, both ways to search, recorded values."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator, lattice, lidar_cloud

from pcdet.ops.vector_pool import cpu, local_three_nn, reference, voxel_pool

INF = math.inf


def scenes(n=(300, 0, 200), m=(20, 5, 15), grid=4):
    """Support points, counts, centres, counts; grid centres near each centre."""
    support, centres = (torch.randn(sum(number), 3, generator=generator(seed)) for seed, number in enumerate((n, m)))
    around = centres[:, None] + 0.4 * torch.randn(len(centres), grid, 3, generator=generator(2))
    return (support, torch.tensor(n), centres, torch.tensor(m)), around


def naive_neighbours(cloud, centre, radius, cap, ball):
    """The definition in float32: the first rows within the border, which counts."""
    offset, reach = cloud - centre, np.float32(radius)
    inside = (np.abs(offset) <= reach).all(1)
    if ball:
        inside = offset[:, 0] ** 2 + offset[:, 1] ** 2 + offset[:, 2] ** 2 <= reach * reach
    return np.flatnonzero(inside)[: cap if cap > 0 else None]


def naive_three(cloud, places, rows):
    found = np.full((len(places), 3), -1)
    squared = np.full((len(places), 3), np.inf, dtype=np.float32)
    for t, place in enumerate(places):
        d = place - cloud[rows]
        d = d[:, 0] ** 2 + d[:, 1] ** 2 + d[:, 2] ** 2
        order = np.argsort(d, kind="stable")[:3]
        order = np.concatenate([order, np.repeat(order[:1], 3 - len(order))]) if len(order) else order
        found[t, : len(order)], squared[t, : len(order)] = rows[order], d[order]
    return squared, found


def test_three_neighbours_by_hand():
    support = torch.tensor([[0.9, 0, 0], [0.1, 0, 0], [0, 0.3, 0], [0, 0, 5], [0.2, 0, 0]])
    one = torch.tensor([1])
    arguments = (support, torch.tensor([5]), torch.zeros(1, 3), torch.zeros(1, 1, 3), one)
    distances, rows = local_three_nn(*arguments, 1.0)
    assert rows.tolist() == [[[1, 4, 2]]] and torch.allclose(distances, torch.tensor([0.1, 0.2, 0.3]))
    assert local_three_nn(*arguments, 1.0, num_samples=2)[1].tolist() == [[[1, 0, 1]]]  # the nearest stands in
    assert local_three_nn(*arguments, 0.1)[1].tolist() == [[[1, 1, 1]]]  # the border counts
    distances, rows = local_three_nn(*arguments, 0.05)
    assert rows.tolist() == [[[-1] * 3]] and distances.tolist() == [[[INF] * 3]]


def test_cells_by_hand():
    """Cells of 1 m along x, from -1 to 1; (1, 0, 0) lies on the upper border: the next flat cell, clipped."""
    support = torch.tensor([[-0.5, 0, 0], [0.5, 0, 0], [-0.3, 0, 0], [1.0, 0, 0], [3.0, 0, 0]]) + 7
    features = torch.tensor([[1.0], [2], [5], [10], [99]])
    arguments = (support, torch.tensor([5]), features, torch.full((1, 3), 7.0), torch.tensor([1]), (2, 1, 1), 1.0)
    pooled = voxel_pool(*arguments)
    assert pooled.counts.tolist() == [[2, 2]] and pooled.features.tolist() == [[[3], [6]]]
    assert torch.allclose(pooled.offsets, torch.tensor([[[-0.4, 0, 0], [0.75, 0, 0]]]), atol=1e-6)
    pooled = voxel_pool(*arguments, method="first")
    assert pooled.counts.tolist() == [[1, 1]] and pooled.features.tolist() == [[[1], [2]]]
    assert voxel_pool(*arguments, num_samples=3).features.tolist() == [[[3], [2]]]
    assert voxel_pool(*arguments, num_samples=1, method="first").counts.tolist() == [[1, 0]]


def test_the_upper_border_of_y_is_the_next_cell_along_x():
    arguments = (torch.tensor([[-0.5, 1.0, 0]]), torch.tensor([1]), torch.ones(1, 1), torch.zeros(1, 3))
    assert voxel_pool(*arguments, torch.tensor([1]), (2, 2, 1), 1.0).counts.tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize("ball", [False, True])
@pytest.mark.parametrize("radius, cap", [(0.3, 1000), (0.9, 5), (0.9, 1000), (50.0, 30)])
def test_three_neighbours_match_the_definition(radius, cap, ball):
    (support, counts, centres, centre_counts), around = scenes()
    scene = torch.arange(3).repeat_interleave(centre_counts)
    starts = counts.cumsum(0) - counts
    for module in (cpu, reference):
        squared, rows = module.three_nn(
            support, counts.tolist(), centres, centre_counts.tolist(), around, radius, cap, ball
        )
        for m, b in enumerate(scene.tolist()):
            cloud = support[starts[b] : starts[b] + counts[b]].numpy()
            near = naive_neighbours(cloud, centres[m].numpy(), radius, cap, ball)
            expected, found = naive_three(cloud, around[m].numpy(), near)
            assert np.array_equal(rows[m], np.where(found >= 0, found + starts[b].item(), -1))
            assert np.array_equal(squared[m], expected)


@pytest.mark.parametrize("ball", [False, True])
@pytest.mark.parametrize("radius", [0.5, 3.0, 20.0])
def test_kernels_match_the_reference_on_a_scan(radius, ball):
    """Dense near the scanner and thin far away, so that both ways to search and the cap of 1000 come into play."""
    support, centres = lidar_cloud(6000), torch.cat([lidar_cloud(60, seed=1), lidar_cloud(40)[::5] + 40])
    arguments = (support, [6000], centres, [len(centres)])
    around = centres[:, None] + radius * (torch.rand(len(centres), 3, 3, generator=generator()) - 0.5)
    for found, expected in zip(
        cpu.three_nn(*arguments, around, radius, 1000, ball),
        reference.three_nn(*arguments, around, radius, 1000, ball),
        strict=True,
    ):
        assert torch.equal(found, expected)
    for name, cap in (("first_members", -1), ("first_members", 3), ("all_members", -1), ("all_members", 25)):
        found = getattr(cpu, name)(*arguments, (3, 2, 1), radius, cap, ball)
        expected = getattr(reference, name)(*arguments, (3, 2, 1), radius, cap, ball)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)) and len(found[0]) > 30


@pytest.mark.parametrize("cap", [1, 7, 60, 1000])
def test_a_lattice_full_of_ties(cap):
    cloud = lattice(9)
    arguments = (cloud, [729], cloud[::10], [73], cloud[::10, None] + 0.5, 2.0, cap, False)
    for found, expected in zip(cpu.three_nn(*arguments), reference.three_nn(*arguments), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("module", [cpu, reference])
def test_points_that_are_not_finite_are_nobodys_neighbour(module):
    support = torch.tensor([[math.nan, 0, 0], [INF, 0, 0], [0.1, 0, 0], [3e38, 3e38, 3e38]])
    centres = torch.tensor([[0.0, 0, 0], [math.nan, 0, 0], [-INF, 0, 0], [1e30, 0, 0]])
    _, rows = module.three_nn(support, [4], centres, [4], centres[:, None], 0.5, 1000, False)
    assert rows[:, 0].tolist() == [[2, 2, 2], [-1] * 3, [-1] * 3, [-1] * 3]
    rows, start = module.all_members(support, [4], centres, [4], (1, 1, 1), 0.5, -1, True)
    assert rows.tolist() == [2] and start.tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("method", ["avg", "first"])
def test_gradients(method):
    (support, counts, centres, centre_counts), _ = scenes((12, 0, 8), (3, 1, 2))
    features = torch.randn(20, 3, dtype=torch.float64, generator=generator()).requires_grad_()

    def pool(rows):
        return voxel_pool(support, counts, rows, centres, centre_counts, (2, 1, 2), 1.5, method=method).features

    assert pool(features).count_nonzero() > 10
    assert torch.autograd.gradcheck(pool, (features,))


def test_stacked_scenes_are_searched_apart():
    (support, counts, centres, centre_counts), around = scenes()
    distances, rows = local_three_nn(support, counts, centres, around, centre_counts, 0.8)
    pooled = voxel_pool(support, counts, support, centres, centre_counts, (3, 3, 3), 0.8)
    tail = (support[300:], counts[2:], centres[25:])
    alone = local_three_nn(*tail, around[25:], centre_counts[2:], 0.8)
    assert torch.equal(distances[25:], alone[0])
    assert torch.equal(rows[25:], torch.where(alone[1] >= 0, alone[1] + 300, -1))
    assert (rows[20:25] == -1).all() and not pooled.counts[20:25].any()
    expected = voxel_pool(*tail[:2], tail[0], tail[2], centre_counts[2:], (3, 3, 3), 0.8)
    assert all(torch.equal(a[25:], b) for a, b in zip(pooled, expected, strict=True))


@pytest.mark.parametrize("n, m", [(0, 0), (0, 3), (4, 0)])
@pytest.mark.parametrize("method", ["avg", "first"])
def test_empty_tensors(n, m, method):
    scene = (torch.zeros(n, 3), torch.tensor([n]))
    distances, rows = local_three_nn(*scene, torch.ones(m, 3), torch.ones(m, 2, 3), torch.tensor([m]), 0.5)
    assert distances.shape == rows.shape == (m, 2, 3) and (rows == -1).all() and (distances == INF).all()
    features = torch.ones(n, 2).requires_grad_()
    pooled = voxel_pool(*scene, features, torch.ones(m, 3), torch.tensor([m]), (2, 1, 1), 0.5, method=method)
    assert pooled.features.shape == (m, 2, 2) and pooled.offsets.shape == (m, 2, 3) and not pooled.counts.any()
    pooled.features.sum().backward()
    nothing = reference.three_nn(scene[0], [n], torch.ones(m, 3), [m], torch.ones(m, 2, 3), 0.5, 10, False)
    assert nothing[1].shape == (m, 2, 3) and (nothing[1] == -1).all()


def test_thread_counts_do_not_change_a_bit():
    support, centres, threads = lidar_cloud(3000), lidar_cloud(200, seed=1), torch.get_num_threads()
    arguments, results = (support, torch.tensor([3000]), centres, centres[:, None], torch.tensor([200]), 2.0), []
    for number in (1, 3):
        torch.set_num_threads(number)
        results.append(local_three_nn(*arguments))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_bad_arguments():
    (support, counts, centres, centre_counts), around = scenes()
    with pytest.raises(ValueError, match="grids around 39"):
        local_three_nn(support, counts, centres, around[1:], centre_counts, 0.5)
    with pytest.raises(ValueError, match="counts add up to 499"):
        local_three_nn(support, counts - torch.tensor([1, 0, 0]), centres, around, centre_counts, 0.5)
    with pytest.raises(ValueError, match="max_distance"):
        local_three_nn(support, counts, centres, around, centre_counts, 0.0)
    with pytest.raises(ValueError, match=r"neighbour_type \(2\)"):
        local_three_nn(support, counts, centres, around, centre_counts, 1.0, neighbour_type=2)
    with pytest.raises(ValueError, match="500 support points but 499 rows"):
        voxel_pool(support, counts, support[1:], centres, centre_counts, (3, 3, 3), 1.0)
    with pytest.raises(ValueError, match="num_voxels"):
        voxel_pool(support, counts, support, centres, centre_counts, (3, 0, 3), 1.0)
    with pytest.raises(ValueError, match="'avg' or 'first'"):
        voxel_pool(support, counts, support, centres, centre_counts, (3, 3, 3), 1.0, method="max")
    with pytest.raises(ValueError, match="must be \\(B,\\)"):
        local_three_nn(support, counts, centres, around, centre_counts[:2], 0.5)


def recorded(shared):
    data = np.load(shared / "oracles" / "ops" / "vector_pool.npz")
    scene = [torch.from_numpy(data[f"in_{name}"]) for name in ("xyz", "xyz_cnt", "new_xyz", "new_xyz_cnt")]
    return data, (scene[0], scene[1].long()), scene[2], scene[3].long()


@pytest.mark.parametrize("distance, samples, kind, multiplier", [(0.6, -1, 0, 2.0), (0.4, 3, 1, 1.0)])
def test_recorded_three_neighbours(shared, distance, samples, kind, multiplier):
    data, support, centres, counts = recorded(shared)
    around = torch.from_numpy(data["in_grid_centers"])
    found = local_three_nn(*support, centres, around, counts, distance * multiplier, samples, kind)
    key = f"{distance}_{samples}_{kind}_{multiplier}"
    assert np.array_equal(found[1], data[f"out_tnn_idx_{key}"])
    assert np.allclose(found[0], data[f"out_tnn_dist_{key}"], rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    "voxels, distance, channels, samples, kind, first",
    [("333", 1.0, 2, -1, 0, 0), ("333", 1.0, 3, 32, 0, 1), ("222", 0.8, 6, 5, 1, 0), ("231", 1.2, 2, -1, 1, 1)],
)
def test_recorded_pools(shared, voxels, distance, channels, samples, kind, first):
    """The recorded operator folds channels itself: by their sum, or by the last of them where it takes one point."""
    data, support, centres, counts = recorded(shared)
    features = torch.from_numpy(data["in_features"]).requires_grad_()
    folded = features.view(len(features), -1, channels)
    folded = folded[:, -1] if first else folded.sum(dim=1)
    shape, method = [int(number) for number in voxels], "first" if first else "avg"
    pooled = voxel_pool(*support, folded, centres, counts, shape, distance, samples, kind, method)
    key = f"{voxels}_{distance}_{channels}_{samples}_{kind}_{first}"
    assert np.array_equal(pooled.counts, data[f"out_cnt_{key}"])
    assert np.allclose(pooled.offsets.flatten(1), data[f"out_local_{key}"], rtol=0, atol=1e-6)
    assert np.allclose(pooled.features.detach().flatten(1), data[f"out_feat_{key}"], rtol=0, atol=1e-6)
    upstream = torch.arange(pooled.features.numel(), dtype=torch.float64).cos().float()
    pooled.features.flatten().backward(upstream)
    own = slice(-channels, None) if first else slice(None)  # the other folds get the gradient as well there
    assert np.allclose(features.grad[:, own], data[f"out_grad_{key}"][:, own], rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["avg", "first"])
def test_pools_of_no_centres(method):
    none = torch.zeros(0, 3)
    for module in (cpu, reference):
        members = module.first_members if method == "first" else module.all_members
        rows, start = members(torch.zeros(4, 3), [4], none, [0], (2, 2, 2), 1.0, -1, False)
        assert rows.tolist() == [] and start.tolist() == [0]
