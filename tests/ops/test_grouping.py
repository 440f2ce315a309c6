"""Grouping: hand cases, gradients, bad indices, recorded groups."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator

from pcdet.ops.grouping import cpu, group_points, group_rows, reference


def test_by_hand():
    features = torch.arange(12.0).reshape(2, 3, 2)
    idx = torch.tensor([[[0, 2]], [[1, 1]]])
    assert group_points(features, idx).tolist() == [[[[0, 1], [4, 5]]], [[[8, 9], [8, 9]]]]


def test_the_gradient_counts_how_often_a_row_was_taken():
    features = torch.zeros(1, 4, 1, requires_grad=True)
    group_points(features, torch.tensor([[[0, 2], [2, 2]]])).sum().backward()
    assert features.grad.flatten().tolist() == [1, 0, 3, 0]


def test_b5_gradient_check_of_non_square_shapes():
    features = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator(), requires_grad=True)
    idx = torch.randint(0, 5, (2, 4, 6), generator=generator())
    assert torch.autograd.gradcheck(group_points, (features, idx))
    assert torch.autograd.gradgradcheck(group_points, (features, idx))


@pytest.mark.parametrize("shape, idx", [((0, 5, 3), (0, 2, 4)), ((2, 0, 3), (2, 0, 4)), ((2, 5, 0), (2, 3, 4))])
def test_empty_tensors(shape, idx):
    features = torch.zeros(shape, requires_grad=True)
    grouped = group_points(features, torch.zeros(idx, dtype=torch.int64))
    assert grouped.shape == (*idx, shape[2])
    grouped.sum().backward()
    assert features.grad.shape == shape


@pytest.mark.parametrize("bad", [-1, 5])
def test_b1_an_index_outside_the_cloud_never_reads_another_one(bad):
    with pytest.raises(ValueError, match=f"idx holds {bad}, but each cloud has the rows 0 to 4"):
        group_points(torch.zeros(2, 5, 3), torch.tensor([[[0, bad]], [[0, 0]]]))


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"\(B, N, C\)"):
        group_points(torch.zeros(5, 3), torch.zeros(1, 1, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(2, S, G\)"):
        group_points(torch.zeros(2, 5, 3), torch.zeros(3, 1, 1, dtype=torch.int64))


def test_recorded_groups_and_gradient(shared):
    data = np.load(shared / "oracles" / "ops" / "ball_query_group_batch.npz")
    features = torch.from_numpy(data["in_features"]).transpose(1, 2).requires_grad_()  # (B, N, C)
    grouped = group_points(features, torch.from_numpy(data["out_idx_group"]).long())
    assert np.array_equal(grouped.detach().permute(0, 3, 1, 2), data["out_grouped"])
    grouped.permute(0, 3, 1, 2).backward(recorded_upstream(data["out_grouped"].shape))
    assert np.allclose(features.grad.transpose(1, 2), data["out_group_grad"], rtol=0, atol=2e-6)


def recorded_upstream(shape):
    """The gradient that the recorded backward passes were given."""
    return torch.arange(math.prod(shape), dtype=torch.float64).cos().float().view(shape)


def test_rows_by_hand():
    rows = torch.arange(8.0).view(4, 2).requires_grad_()
    grouped = group_rows(rows, torch.tensor([[0, 3], [3, 3]]))
    assert grouped.tolist() == [[[0, 1], [6, 7]], [[6, 7], [6, 7]]]
    grouped.backward(torch.arange(8.0).view(2, 2, 2))
    assert rows.grad.tolist() == [[0, 1], [0, 0], [0, 0], [2 + 4 + 6, 3 + 5 + 7]]


def test_gradient_check_of_rows():
    rows = torch.randn(5, 3, dtype=torch.float64, generator=generator(), requires_grad=True)
    index = torch.randint(0, 5, (4, 6), generator=generator())
    assert torch.autograd.gradcheck(group_rows, (rows, index))
    assert torch.autograd.gradgradcheck(group_rows, (rows, index))


@pytest.mark.parametrize(
    "k, n, channels", [(900, 400, 5), (900, 4, 300), (5000, 30, 1), (7, 0, 0), (0, 5, 3), (40, 9, 0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_rows(k, n, channels, dtype):
    """Few and many values a row, one and several blocks of channels, rows that nobody took."""
    values = torch.randint(-9, 9, (k, channels), generator=generator()).to(dtype)  # whole numbers add up exactly
    index = torch.randint(0, max(n, 1), (k,), generator=generator()) if channels else torch.zeros(k, dtype=torch.int64)
    found = cpu.sum_rows(values, index, n)
    assert found.dtype == dtype and torch.equal(found, reference.sum_rows(values, index, n))


def test_values_that_are_not_contiguous():
    values, index = torch.randn(3, 50, generator=generator()).T, torch.randint(0, 9, (50,), generator=generator())
    assert torch.allclose(cpu.sum_rows(values, index, 9), reference.sum_rows(values, index, 9))
    same = torch.ones(1, 3).expand(50, 3)
    assert torch.equal(cpu.sum_rows(same, index, 9), reference.sum_rows(same, index, 9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_are_summed_as_float32(dtype):
    rows = torch.zeros(1, 2, dtype=dtype, requires_grad=True)
    group_rows(rows, torch.zeros(1, 4000, dtype=torch.int64)).sum(dtype=torch.float32).backward()
    assert rows.grad.dtype == dtype and torch.equal(rows.grad, torch.full((1, 2), 4000.0, dtype=dtype))


def test_groups_of_no_rows_are_zero():
    rows = torch.zeros(0, 3, requires_grad=True)
    grouped = group_rows(rows, torch.zeros(2, 4, dtype=torch.int64))
    assert grouped.shape == (2, 4, 3) and not grouped.any()
    grouped.sum().backward()
    assert rows.grad.shape == (0, 3)
    assert group_rows(torch.zeros(5, 3), torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 4, 3)


def test_bad_rows():
    with pytest.raises(ValueError, match=r"\(N, C\)"):
        group_rows(torch.zeros(1, 5, 3), torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(M, G\)"):
        group_rows(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="index holds 5, but there are the rows 0 to 4"):
        group_rows(torch.zeros(5, 3), torch.tensor([[0, 5]]))
    with pytest.raises(ValueError, match="one device"):
        group_rows(torch.zeros(5, 3), torch.zeros(1, 1, dtype=torch.int64, device="meta"))


def test_recorded_groups_and_gradient_of_stacked_scenes(shared):
    data = np.load(shared / "oracles" / "ops" / "ball_query_group_stack.npz")
    counts, centre_counts = (torch.from_numpy(data[key]).long() for key in ("in_xyz_cnt", "in_new_xyz_cnt"))
    first_row = torch.repeat_interleave(counts.cumsum(0) - counts, centre_counts)
    rows = torch.from_numpy(data["in_features"]).requires_grad_()
    grouped = group_rows(rows, torch.from_numpy(data["out_group_idx"]).long() + first_row[:, None])
    assert np.array_equal(grouped.detach().transpose(1, 2), data["out_grouped"])
    grouped.transpose(1, 2).backward(recorded_upstream(data["out_grouped"].shape))
    assert np.allclose(rows.grad, data["out_group_grad"], rtol=0, atol=2e-6)
