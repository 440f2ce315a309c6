"""Three nearest neighbours and interpolation: hand cases, ties, a naive loop, too few points, recorded values."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator, lattice, lidar_cloud

from pcdet.ops.three_nn import cpu, reference, three_interpolate, three_nn_stack


def counts_of(*lengths):
    return torch.tensor(lengths, dtype=torch.int64)


def nearest(unknown, known):
    """Through the door, for one scene."""
    return three_nn_stack(unknown, counts_of(len(unknown)), known, counts_of(len(known)))


def naive(unknown, known):
    """The definition, in float32 and with the lowest index first at ties."""
    squares, indices = [], []
    for point in unknown:
        d = known - point
        square = d[:, 0] ** 2 + d[:, 1] ** 2 + d[:, 2] ** 2
        indices.append(np.argsort(square, kind="stable")[:3])
        squares.append(square[indices[-1]])
    return np.array(squares), np.array(indices)


def test_by_hand():
    known = torch.tensor([[4.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, -3]])
    distance, index = nearest(torch.zeros(1, 3), known)
    assert distance.tolist() == [[1, 2, 3]] and index.tolist() == [[1, 2, 3]]


def test_of_equally_distant_points_the_earlier_ones_are_taken_in_order():
    known = torch.tensor([[0.0, 0, 2], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]])
    assert nearest(torch.zeros(1, 3), known)[1].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("m", [3, 15, 16, 17, 40, 1000])
@pytest.mark.parametrize(
    "cloud",
    [
        lidar_cloud(1000),
        torch.randn(1000, 3, generator=generator()).round(),
        lidar_cloud(1000) * torch.tensor([1.0, 0.0, 0.0]),
        torch.zeros(1000, 3),
        torch.randn(1000, 3, generator=generator()) * 1e-3 + 5e4,
        torch.cat([torch.tensor([[1e6, 0, 0]]), lidar_cloud(999)]),
    ],
    ids=["lidar", "duplicates", "a line", "one place", "rounded", "outlier"],
)
def test_kernel_reference_and_definition_agree_exactly(cloud, m):
    unknown = torch.cat([cloud[:60], lidar_cloud(60, seed=1)])
    square, index = naive(unknown.numpy(), cloud[:m].numpy())
    for module in (cpu, reference):
        found_square, found_index = module.three_nn_stack(unknown, [len(unknown)], cloud[:m], [m])
        assert np.array_equal(found_square, square) and np.array_equal(found_index, index)


def test_ties_on_a_lattice():
    known = lattice(9)[torch.randperm(729, generator=generator())]
    unknown = torch.cat([lattice(9), lattice(8) + 0.5])
    expected = reference.three_nn_stack(unknown, [len(unknown)], known, [729])
    assert all(map(torch.equal, cpu.three_nn_stack(unknown, [len(unknown)], known, [729]), expected))


@pytest.mark.parametrize("module", [cpu, reference])
def test_each_stacked_scene_is_searched_alone(module):
    lengths, known_lengths = (200, 0, 30, 5, 1), (90, 4, 300, 2, 0)
    unknown, known = lidar_cloud(sum(lengths)), lidar_cloud(sum(known_lengths), seed=1)
    square, index = module.three_nn_stack(unknown, lengths, known, known_lengths)
    expected = naive(unknown[:200].numpy(), known[:90].numpy())
    assert np.array_equal(square[:200], expected[0]) and np.array_equal(index[:200], expected[1])
    expected = naive(unknown[200:230].numpy(), known[94:394].numpy())
    assert np.array_equal(square[200:230], expected[0]) and np.array_equal(index[200:230], expected[1] + 94)
    assert index[230:235, :2].sort(dim=1).values.tolist() == [[394, 395]] * 5
    assert square[230:235, 2].isinf().all() and (index[230:235, 2] == 394).all()
    assert square[235].isinf().all() and not index[235].any()  # no known points: any valid row


@pytest.mark.parametrize("module", [cpu, reference])
def test_points_that_are_not_finite_are_nobodys_neighbour(module):
    known = torch.tensor([[0.0, 0, 0], [math.nan, 0, 0], [math.inf, 0, 0], [1, 0, 0], [3e38, 3e38, 3e38]]).repeat(9, 1)
    known[5:, :] = torch.tensor([math.nan, -math.inf, 1e38])
    unknown = torch.tensor([[0.9, 0, 0], [math.nan, 0, 0], [-math.inf, 0, 0]])
    square, index = module.three_nn_stack(unknown, [3], known, [45])
    assert index.tolist() == [[3, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert square[0, :2].sqrt().tolist() == pytest.approx([0.1, 0.9]) and square[0, 2].isinf()
    assert square[1:].isinf().all()


def test_empty_stacks():
    none = torch.zeros(0, 3)
    assert three_nn_stack(none, counts_of(), none, counts_of())[1].shape == (0, 3)
    assert three_nn_stack(none, counts_of(0), torch.zeros(4, 3), counts_of(4))[0].shape == (0, 3)
    distance, index = three_nn_stack(torch.zeros(4, 3), counts_of(4), none, counts_of(0))
    assert distance.isinf().all() and not index.any()


def test_more_columns_are_not_read_and_nothing_is_written():
    unknown, known = torch.randn(9, 5, generator=generator()), torch.randn(40, 4, generator=generator(1))
    before = known.clone()
    wide, narrow = nearest(unknown, known), nearest(unknown[:, :3], known[:, :3].contiguous())
    assert all(map(torch.equal, wide, narrow)) and torch.equal(known, before)
    narrow_known = known[:, :3].contiguous()
    cpu.three_nn_stack(unknown[:, :3], [9], narrow_known, [40])
    assert torch.equal(narrow_known, before[:, :3])  # the tree reorders a copy


def test_bad_stacks():
    points, two = torch.zeros(5, 3), counts_of(2, 3)
    with pytest.raises(ValueError, match=r"of unknown must add up to its 5 rows"):
        three_nn_stack(points, counts_of(1, 1), points, two)
    with pytest.raises(ValueError, match=r"of known must add up to its 5 rows"):
        three_nn_stack(points, two, points, counts_of(5, 5))
    with pytest.raises(ValueError, match="2 scenes but known 1"):
        three_nn_stack(points, two, points, counts_of(5))
    with pytest.raises(ValueError, match=r"known must have the shape \(M, 3\+\)"):
        three_nn_stack(points, two, points[None], two)


@pytest.mark.parametrize("two", ["", "_two"])
def test_recorded_neighbours(shared, two):
    data = np.load(shared / "oracles" / "ops" / "three_nn_interpolate.npz")
    unknown, known = (torch.from_numpy(data[key]) for key in ("in_unknown", "in_known" + two))
    counts = [counts_of(*[x.shape[1]] * len(x)) for x in (unknown, known)]
    distance, index = three_nn_stack(unknown.flatten(0, 1), counts[0], known.flatten(0, 1), counts[1])
    index = index.view(unknown.shape) - (torch.arange(2) * known.shape[1])[:, None, None]
    assert np.array_equal(distance.view(unknown.shape), data["out_dist" + two])
    assert np.array_equal(index, data["out_idx" + two])


def test_recorded_neighbours_and_interpolation_of_stacked_scenes(shared):
    data = np.load(shared / "oracles" / "ops" / "three_nn_interpolate.npz")
    unknown, known, weight, features = (
        torch.from_numpy(data[key]) for key in ("in_s_unknown", "in_s_known", "out_s_weight", "in_s_features")
    )
    counts, known_counts = (torch.from_numpy(data[key]).long() for key in ("in_s_unknown_cnt", "in_s_known_cnt"))
    distance, index = three_nn_stack(unknown, counts, known, known_counts)
    assert np.array_equal(distance, data["out_s_dist"]) and np.array_equal(index, data["out_s_idx"])
    interpolated = three_interpolate(features.requires_grad_(), index, weight)
    assert np.allclose(interpolated.detach(), data["out_s_interp"], rtol=0, atol=1e-6)
    interpolated.backward(torch.arange(interpolated.numel(), dtype=torch.float64).cos().float().view_as(interpolated))
    assert np.allclose(features.grad, data["out_s_interp_grad"], rtol=0, atol=2e-6)


def test_interpolation_by_hand():
    features = torch.tensor([[1.0, 10], [2, 20], [4, 40]], requires_grad=True)
    index, weight = torch.tensor([[0, 1, 2], [2, 2, 2]]), torch.tensor([[0.5, 0.25, 0.25], [1, 1, 1]])
    interpolated = three_interpolate(features, index, weight)
    assert interpolated.tolist() == [[2, 20], [12, 120]]
    interpolated.backward(torch.tensor([[1.0, 2], [10, 0]]))
    assert features.grad.tolist() == [[0.5, 1], [0.25, 0.5], [0.25 + 30, 0.5]]


def test_gradient_check_of_the_interpolation():
    features = torch.randn(5, 4, dtype=torch.float64, generator=generator(), requires_grad=True)
    weight = torch.rand(7, 3, dtype=torch.float64, generator=generator(), requires_grad=True)
    index = torch.randint(0, 5, (7, 3), generator=generator())
    assert torch.autograd.gradcheck(three_interpolate, (features, index, weight))
    assert torch.autograd.gradgradcheck(three_interpolate, (features, index, weight))


@pytest.mark.parametrize("n, m, channels", [(700, 90, 5), (40, 4, 300), (0, 4, 5), (7, 3, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_interpolation_and_its_adjoint_equal_the_reference(n, m, channels, dtype):
    features, values = torch.randn(m, channels, dtype=dtype), torch.randn(channels, n, dtype=dtype).T
    index, weight = torch.randint(0, m, (n, 3), generator=generator()), torch.rand(3, n, dtype=dtype).T
    for name, given in (("interpolate", (features, index, weight)), ("spread", (values, index, weight, m))):
        found, expected = getattr(cpu, name)(*given), getattr(reference, name)(*given)
        assert found.dtype == dtype and torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_interpolation_of_half_precision_features():
    features = torch.randn(9, 5, generator=generator()).bfloat16().requires_grad_()
    index, weight = torch.randint(0, 9, (20, 3), generator=generator()), torch.rand(20, 3, generator=generator())
    found = three_interpolate(features, index, weight)
    expected = reference.interpolate(features.detach().float(), index, weight)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())
    found.float().sum().backward()
    assert features.grad.dtype == torch.bfloat16


def test_interpolation_of_no_features_is_zero():
    features = torch.zeros(0, 4, requires_grad=True)
    distance, index = three_nn_stack(torch.zeros(3, 3), counts_of(3), torch.zeros(0, 3), counts_of(0))
    found = three_interpolate(features, index, distance / distance.sum(dim=1, keepdim=True))
    assert found.shape == (3, 4) and not found.any()
    found.sum().backward()
    assert features.grad.shape == (0, 4)


def test_bad_interpolations():
    features, index, weight = torch.zeros(5, 4), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"\(M, C\)"):
        three_interpolate(features[None], index, weight)
    with pytest.raises(ValueError, match=r"\(N, 3\)"):
        three_interpolate(features, index, weight[:1])
    with pytest.raises(ValueError, match=r"\(N, 3\)"):
        three_interpolate(features, index[:, :2], weight[:, :2])
    with pytest.raises(ValueError, match="index holds -1, but there are the rows 0 to 4"):
        three_interpolate(features, index - 1, weight)
    with pytest.raises(ValueError, match="one device"):
        three_interpolate(features, index, weight.to("meta"))
