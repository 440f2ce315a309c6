"""The Triton kernels of three-nn, interpolation and the gradient of grouping against their references."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator, lattice, lidar_cloud

from pcdet.ops.grouping import group_points, group_rows
from pcdet.ops.three_nn import three_interpolate, three_nn_stack


def counts_of(device, *lengths):
    return torch.tensor(lengths, dtype=torch.int64, device=device)


@pytest.mark.parametrize(
    "counts, known_counts",
    [
        ([60, 0, 45], [150, 7, 90]),
        ([40], [1]),  # one known point
        ([20, 5, 30], [2, 0, 65]),  # two known points; none
        ([5], [0]),
        ([0], [9]),
        ([], []),
    ],
)
def test_three_nearest(rooms, device, counts, known_counts):
    unknown, known = lidar_cloud(sum(counts)), lidar_cloud(sum(known_counts), seed=1)
    kernel, reference = rooms("three_nn")
    lengths = counts_of(device, *counts), counts_of(device, *known_counts)
    square, index = kernel.three_nn_stack(unknown.to(device), lengths[0], known.to(device), lengths[1])
    expected = reference.three_nn_stack(unknown, counts, known, known_counts)
    assert torch.equal(square.cpu(), expected[0]) and torch.equal(index.cpu(), expected[1])


def test_the_lower_index_wins_ties(rooms, device):
    grid = lattice(5)
    kernel, reference = rooms("three_nn")
    count = counts_of(device, len(grid))
    square, index = kernel.three_nn_stack(grid.to(device) + 0.5, count, grid.to(device), count)
    expected = reference.three_nn_stack(grid + 0.5, [len(grid)], grid, [len(grid)])
    assert torch.equal(square.cpu(), expected[0]) and torch.equal(index.cpu(), expected[1])


def test_points_that_are_not_finite_are_no_neighbours(rooms, device):
    known = torch.tensor([[math.nan, 0, 0], [1, 0, 0], [math.inf, 0, 0], [3e38, 3e38, 0]])
    unknown = torch.tensor([[0.0, 0, 0], [math.nan, 0, 0]])
    kernel, reference = rooms("three_nn")
    lengths = counts_of(device, 2), counts_of(device, 4)
    square, index = kernel.three_nn_stack(unknown.to(device), lengths[0], known.to(device), lengths[1])
    expected = reference.three_nn_stack(unknown, [2], known, [4])
    assert torch.equal(square.cpu(), expected[0]) and torch.equal(index.cpu(), expected[1])


@pytest.mark.parametrize("channels", [1, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_interpolation_and_its_adjoint(rooms, device, channels, dtype):
    g = generator()
    features, values = torch.randn(30, channels, generator=g), torch.randn(50, channels, generator=g)
    index, weight = torch.randint(0, 30, (50, 3), generator=g), torch.rand(50, 3, generator=g)
    index[10:40] = 3  # one row takes most
    features, values = features.to(dtype), values.to(dtype)
    kernel, reference = rooms("three_nn")
    found = kernel.interpolate(features.to(device), index.to(device), weight.to(device))
    ulp = 2**-7 if dtype == torch.bfloat16 else 0  # Triton's interpreter cuts the bits that bfloat16 lacks off
    expected = reference.interpolate(features, index, weight)
    assert found.dtype == dtype and torch.allclose(found.cpu(), expected, rtol=ulp, atol=0)
    found = kernel.spread(values.to(device), index.to(device), weight.to(device), 33)
    expected = reference.spread(values, index, weight, 33)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 0.2, torch.float64: 1e-12}[dtype]
    assert found.dtype == dtype and torch.allclose(found.cpu(), expected, rtol=tolerance, atol=tolerance)
    assert not found[30:].any()


@pytest.mark.parametrize(
    "entries, n, channels", [(700, 5, 17), (300, 320, 3), (1, 1, 1), (0, 4, 3), (5, 0, 0), (5, 3, 0)]
)
def test_sums_of_rows(rooms, device, entries, n, channels):
    values = torch.randn(entries, channels, generator=generator())
    index = torch.randint(0, max(n, 1), (entries,), generator=generator()) if n else torch.zeros(entries).long()
    if n > 1:
        index[: entries // 2] = 1  # several pieces for one row
    kernel, reference = rooms("grouping")
    found = kernel.sum_rows(values.to(device), index.to(device), n)
    expected = reference.sum_rows(values.double(), index, n) if n else values.new_zeros(0, channels)
    assert found.shape == (n, channels) and torch.allclose(found.cpu(), expected.float(), rtol=1e-5, atol=1e-4)


def test_sums_of_integers_and_the_same_sum_on_every_run(rooms, device):
    values = torch.randn(600, 8, generator=generator())
    index = torch.randint(0, 3, (600,), generator=generator())
    kernel, reference = rooms("grouping")
    whole = (values * 10).long()
    assert torch.equal(
        kernel.sum_rows(whole.to(device), index.to(device), 3).cpu(), reference.sum_rows(whole, index, 3)
    )
    first, second = (kernel.sum_rows(values.to(device), index.to(device), 3) for _ in range(2))
    assert torch.equal(first, second)


def test_gradients_through_the_doors(through_triton):
    """A function, its gradient and the gradient of that, against plain torch indexing."""
    g = generator()
    rows, weight = torch.randn(20, 4, generator=g).double(), torch.rand(9, 3, generator=g).double()
    index = torch.randint(0, 20, (9, 3), generator=g)
    results = []
    for ours in (True, False):
        x, w = (value.to(through_triton).requires_grad_() for value in (rows, weight))
        at = index.to(through_triton)
        if ours:
            y = three_interpolate(x, at, w) + group_rows(x, at).sum(dim=1) + group_points(x[None], at[None])[0, :, 0]
        else:
            y = (x[at] * w[..., None]).sum(dim=1) + x[at].sum(dim=1) + x[at][:, 0]
        grads = torch.autograd.grad(y.pow(3).sum(), (x, w), create_graph=True)
        results.append([y, *grads, *torch.autograd.grad(grads[0].square().sum() + grads[1].sum(), (x, w))])
    for found, expected in zip(*results, strict=True):
        assert torch.allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("two", ["", "_two"])
def test_recorded_neighbours(shared, through_triton, two):
    data = np.load(shared / "oracles" / "ops" / "three_nn_interpolate.npz")
    unknown, known = (torch.from_numpy(data[key]).to(through_triton) for key in ("in_unknown", "in_known" + two))
    counts = [counts_of(through_triton, *[x.shape[1]] * len(x)) for x in (unknown, known)]
    distance, index = three_nn_stack(unknown.flatten(0, 1), counts[0], known.flatten(0, 1), counts[1])
    index = index.cpu().view(unknown.shape) - (torch.arange(2) * known.shape[1])[:, None, None]
    assert np.allclose(distance.cpu().view(unknown.shape), data["out_dist" + two], rtol=2e-7, atol=0)
    assert np.array_equal(index, data["out_idx" + two])


def test_recorded_interpolation_and_gradient_of_stacked_scenes(shared, through_triton):
    data = np.load(shared / "oracles" / "ops" / "three_nn_interpolate.npz")
    keys = ("in_s_unknown", "in_s_unknown_cnt", "in_s_known", "in_s_known_cnt", "out_s_weight", "in_s_features")
    *clouds, weight, features = (torch.from_numpy(data[key]).to(through_triton) for key in keys)
    distance, index = three_nn_stack(*clouds)
    assert np.allclose(distance.cpu(), data["out_s_dist"], rtol=2e-7, atol=0)
    assert np.array_equal(index.cpu(), data["out_s_idx"])
    interpolated = three_interpolate(features.requires_grad_(), index, weight)
    assert np.allclose(interpolated.detach().cpu(), data["out_s_interp"], rtol=0, atol=1e-6)
    upstream = torch.arange(interpolated.numel(), dtype=torch.float64).cos().float().view_as(interpolated)
    interpolated.backward(upstream.to(through_triton))
    assert np.allclose(features.grad.cpu(), data["out_s_interp_grad"], rtol=0, atol=2e-6)
