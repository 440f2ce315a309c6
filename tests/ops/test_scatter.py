"""Pooling over groups of rows: hand arithmetic, ties, groups that share rows, gradients, recorded values."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator

from pcdet.ops.scatter import cpu, pool_rows, reference, rows_by_segment, segment_max, segment_mean

ROWS = torch.tensor([[1.0, 5], [3, 5], [2, -1], [-4, 0]])
SEGMENT = torch.tensor([2, 2, 0, 2])


def naive(features, rows, start, method):
    out = torch.zeros(len(start) - 1, features.shape[1], dtype=features.dtype)
    for s in range(len(out)):
        group = features[rows[start[s] : start[s + 1]]]
        if len(group):
            out[s] = group.amax(0) if method == "max" else group.sum(0) / len(group)
    return out


def overlapping(n, groups, most, seed=0):
    """Groups of 0 to ``most`` rows of n, drawn with repetition over groups."""
    g = generator(seed)
    sizes = torch.randint(0, most + 1, (groups,), generator=g)
    rows = [torch.randperm(n, generator=g)[:size].sort().values for size in sizes.tolist()]
    return torch.cat(rows), torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def test_by_hand():
    assert segment_max(ROWS, SEGMENT, 4).tolist() == [[2, -1], [0, 0], [3, 5], [0, 0]]
    assert segment_mean(ROWS, SEGMENT, 4).tolist() == [[2, -1], [0, 0], [0, pytest.approx(10 / 3)], [0, 0]]
    rows, start = rows_by_segment(SEGMENT, 4)
    assert rows.tolist() == [2, 0, 1, 3] and start.tolist() == [0, 1, 1, 4, 4]


@pytest.mark.parametrize("module", [cpu, reference])
def test_the_first_of_equal_values_gets_the_gradient(module):
    rows, start = module.rows_by_segment(SEGMENT, 3)
    _, source = module.pool_max(ROWS, rows, start)
    assert source.tolist() == [[2, 2], [-1, -1], [1, 0]]
    grad = module.pool_max_backward(torch.tensor([[1.0, 2], [3, 4], [5, 6]]), source, rows, start, 4)
    assert grad.tolist() == [[0, 6], [5, 0], [1, 2], [0, 0]]


def test_the_mean_shares_its_gradient():
    features = ROWS.clone().requires_grad_()
    segment_mean(features, SEGMENT, 4).backward(torch.tensor([[1.0, 2], [9, 9], [3, 6], [9, 9]]))
    assert features.grad.tolist() == [[1, 2], [1, 2], [1, 2], [1, 2]]


@pytest.mark.parametrize("method", ["max", "mean"])
@pytest.mark.parametrize("channels", [1, 5, 130])
def test_kernel_reference_and_definition_agree_on_groups_that_share_rows(method, channels):
    features = torch.randn(200, channels, generator=generator()).round(decimals=1)  # many ties
    rows, start = overlapping(200, 700, 9)
    for module in (cpu, reference):
        pooled = module.pool_max(features, rows, start)[0] if method == "max" else None
        pooled = module.pool_mean(features, rows, start) if pooled is None else pooled
        assert torch.allclose(pooled, naive(features, rows, start, method), rtol=0, atol=1e-6)
    grad = torch.randn(700, channels, generator=generator(1))
    if method == "max":
        source = reference.pool_max(features, rows, start)[1]
        assert torch.equal(cpu.pool_max(features, rows, start)[1], source)
        grads = [module.pool_max_backward(grad, source, rows, start, 200) for module in (cpu, reference)]
    else:
        grads = [module.pool_mean_backward(grad, rows, start, 200) for module in (cpu, reference)]
    assert torch.allclose(*grads, rtol=0, atol=1e-4) and grads[0].abs().sum() > 0


def test_the_two_ways_to_sort_rows_agree():
    segment = torch.randint(0, 50, (1000,), generator=generator())
    for found, expected in zip(cpu.rows_by_segment(segment, 60), reference.rows_by_segment(segment, 60), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("method", ["max", "mean"])
def test_gradients(method):
    features = torch.randn(9, 3, dtype=torch.float64, generator=generator()).requires_grad_()
    rows, start = overlapping(9, 7, 4)
    assert torch.autograd.gradcheck(lambda f: pool_rows(f, rows, start, method), (features,))


@pytest.mark.parametrize("pool", [segment_max, segment_mean])
@pytest.mark.parametrize("n, channels, segments", [(0, 3, 4), (0, 0, 0), (5, 0, 2), (5, 3, 1)])
def test_empty_tensors(pool, n, channels, segments):
    features = torch.ones(n, channels).requires_grad_()
    pooled = pool(features, torch.zeros(n, dtype=torch.int64), segments)
    assert pooled.shape == (segments, channels) and (pooled == (1 if n else 0)).view(-1)[:1].all()
    pooled.sum().backward()
    assert features.grad.shape == (n, channels)
    for module in (cpu, reference):
        nothing = module.pool_max(features.detach(), torch.zeros(0, dtype=torch.int64), torch.zeros(3, dtype=int))
        assert not nothing[0].any() and (nothing[1] == -1).all()


@pytest.mark.parametrize("module", [cpu, reference])
def test_infinities_and_nan(module):
    features = torch.tensor([[-math.inf, math.nan, 1.0], [-math.inf, 2.0, math.nan]])
    pooled, _ = module.pool_max(features, torch.tensor([0, 1]), torch.tensor([0, 2]))
    assert pooled[0, 0] == -math.inf and pooled[0, 1:].isnan().all()


def test_half_precision_keeps_its_type_and_is_summed_in_float32():
    features = torch.full((4096, 2), 1.001, dtype=torch.bfloat16)
    for pool in (segment_max, segment_mean):
        pooled = pool(features, torch.zeros(4096, dtype=torch.int64), 1)
        assert pooled.dtype == torch.bfloat16 and torch.equal(pooled[0], features[0])


def test_thread_counts_do_not_change_a_bit():
    features = torch.randn(3000, 200, generator=generator()).requires_grad_()
    rows, start = overlapping(3000, 2000, 12)
    results, threads = [], torch.get_num_threads()
    for number in (1, 3):
        torch.set_num_threads(number)
        for method in ("max", "mean"):
            pooled = pool_rows(features, rows, start, method)
            results.append((pooled, *torch.autograd.grad(pooled.square().sum(), features)))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for i in (0, 1) for a, b in zip(results[i], results[i + 2], strict=True))


def test_bad_arguments():
    with pytest.raises(ValueError, match="segment holds 4, but must be from 0 to 3"):
        segment_max(ROWS, SEGMENT + 2, 4)
    with pytest.raises(ValueError, match="segment holds -1"):
        segment_mean(ROWS, SEGMENT - 1, 4)
    with pytest.raises(ValueError, match=r"segment must have the shape \(N,\)"):
        rows_by_segment(ROWS.long(), 4)
    with pytest.raises(ValueError, match=r"segment must have the shape \(4,\), not \(3,\)"):
        segment_max(ROWS, SEGMENT[1:], 4)
    start = torch.tensor([0, 4])
    with pytest.raises(ValueError, match="'max' or 'mean'"):
        pool_rows(ROWS, SEGMENT, start, "sum")
    with pytest.raises(ValueError, match="rows hold 4"):
        pool_rows(ROWS, SEGMENT + 2, start, "max")
    with pytest.raises(ValueError, match="start must rise from 0"):
        pool_rows(ROWS, SEGMENT, start - 1, "max")
    with pytest.raises(ValueError, match=r"features must have the shape \(N, C\)"):
        pool_rows(ROWS[0], SEGMENT, start, "max")
    with pytest.raises(ValueError, match="one device"):
        pool_rows(ROWS, SEGMENT.to("meta"), start, "max")


def test_recorded_values(shared):
    data = np.load(shared / "oracles" / "ops" / "scatter.npz")
    features, segment = torch.from_numpy(data["in_src"]).requires_grad_(), torch.from_numpy(data["in_index"])
    pooled = segment_max(features, segment, 30)
    assert np.array_equal(pooled.detach(), data["out_max"])
    assert torch.allclose(segment_mean(features, segment, 30), torch.from_numpy(data["out_mean"]), atol=1e-7)
    upstream = torch.arange(pooled.numel(), dtype=torch.float64).cos().float().view_as(pooled)
    pooled.backward(upstream)
    assert np.allclose(features.grad, data["out_max_grad"], rtol=0, atol=1e-6)
