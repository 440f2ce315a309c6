"""Grouping: hand cases, gradients, bad indices, recorded groups."""

import numpy as np
import pytest
import torch
from ops_cases import generator

from pcdet.ops.grouping import group_points


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
