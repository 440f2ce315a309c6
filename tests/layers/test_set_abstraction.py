"""Set abstraction against a plain loop, and with awkward clouds."""

import logging

import pytest
import torch
from torch import nn

from pcdet.layers.row_norm import RowBatchNorm
from pcdet.layers.set_abstraction import GlobalAbstraction, SetAbstraction, gather_rows


@pytest.fixture
def clouds():
    return torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0))


def level(in_channels=0, **changes):
    torch.manual_seed(1)
    options = {"num_centres": 8, "radius": 0.9, "num_neighbours": 6, "mlp": [5, 7]} | changes
    module = SetAbstraction(in_channels, **options)
    for norm in module.mlp.norms:  # as after some training
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return module


def plain_loop(module, cloud, features):
    """One cloud (N, 3), written as the paper has it: sample, group, offset, MLP, maximum."""
    chosen = [0]
    while len(chosen) < module.num_centres:
        chosen.append(int(torch.cdist(cloud, cloud[chosen]).min(dim=1).values.argmax()))
    out = []
    for centre in cloud[chosen]:
        near = torch.nonzero((cloud - centre).norm(dim=1) < module.radius)[:, 0][: module.num_neighbours]
        rows = torch.cat([cloud[near] - centre, features[near]], dim=1)
        for linear, norm in zip(module.mlp.linears, module.mlp.norms, strict=True):
            rows = torch.relu(norm(linear(rows)))
        out.append(rows.max(dim=0).values)
    return cloud[chosen], torch.stack(out)


@pytest.mark.parametrize("channels", [0, 4])
def test_as_the_paper_has_it(clouds, channels):
    module = level(channels).eval()
    features = torch.randn(2, 60, channels)
    centres, found = module(clouds, features if channels else None)
    assert centres.shape == (2, 8, 3) and found.shape == (2, 8, 7)
    for b in range(2):
        expected_centres, expected = plain_loop(module, clouds[b], features[b])
        assert torch.equal(centres[b], expected_centres)
        assert torch.allclose(found[b], expected, atol=1e-5)


def test_a_batch_of_two_equals_two_of_one(clouds):
    module = level().eval()
    both = module(clouds, None)[1]
    assert torch.allclose(both, torch.cat([module(c[None], None)[1] for c in clouds]), atol=1e-6)


def test_moving_the_cloud_moves_the_centres_only(clouds):
    module = level().eval()
    (a, before), (b, after) = module(clouds, None), module(clouds + 3.0, None)
    assert torch.allclose(a + 3.0, b)
    assert torch.allclose(before, after, atol=1e-4)


def test_half_precision_does_not_lose_offsets_far_from_the_origin(clouds):
    module = level().eval()
    expected = module(clouds, None)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(clouds + 64.0, None)[1]
    assert (found - expected).abs().max() < 0.03 * expected.abs().max()


def test_it_compiles_in_one_piece(clouds):
    module = level().eval()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(clouds, None)[1], module(clouds, None)[1])


def test_gradients_reach_points_features_and_parameters(clouds):
    module, features = level(4), torch.randn(2, 60, 4, requires_grad=True)
    points = clouds.clone().requires_grad_()
    module(points, features)[1].square().sum().backward()
    for value in (points, features, *module.parameters()):
        assert torch.isfinite(value.grad).all()
    assert points.grad.abs().sum() > 0 and features.grad.abs().sum() > 0


def test_b2_clouds_of_few_distinct_points():
    """Three distinct points, repeated: valid results, the same each time."""
    cloud = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]).repeat(4, 1)[None, :10]
    module = level().eval()
    centres, found = module(cloud, None)
    assert len(torch.unique(centres[0, :3], dim=0)) == 3
    assert torch.isfinite(found).all() and torch.equal(found, module(cloud, None)[1])


def test_b1_a_lonely_point_is_its_own_neighbour():
    cloud = torch.tensor([[[0.0, 0, 0], [50, 0, 0], [0, 50, 0]]])
    module = level(num_centres=3).eval()
    found = module(cloud, None)[1]
    assert torch.allclose(found[0, 1], found[0, 0], atol=1e-4)  # nothing around: all look alike


def test_the_global_level_does_not_depend_on_the_order(clouds):
    torch.manual_seed(0)
    module = GlobalAbstraction(0, [6, 9]).eval()
    shuffled = clouds[:, torch.randperm(60)]
    assert module(clouds, None).shape == (2, 9)
    assert torch.allclose(module(clouds, None), module(shuffled, None), atol=1e-6)


def test_gathering_rows_by_hand():
    rows = torch.arange(12.0).view(2, 3, 2)
    assert gather_rows(rows, torch.tensor([[2, 0], [1, 1]])).tolist() == [[[4, 5], [0, 1]], [[8, 9], [8, 9]]]


def test_e1_a_batch_norm_of_one_row_uses_its_running_statistics(caplog, monkeypatch):
    norm = RowBatchNorm(3)
    norm(torch.randn(8, 3))
    before = norm.running_mean.clone()
    row = torch.randn(1, 3)
    monkeypatch.setattr(RowBatchNorm, "_warned", False)
    monkeypatch.setattr(logging.getLogger("pcdet"), "propagate", True)
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        out = norm(row)
        norm(row)
    assert torch.equal(norm.running_mean, before)
    assert torch.allclose(out, norm.eval()(row))
    assert caplog.text.count("batch of one") == 1
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(norm), nn.SyncBatchNorm)


def test_e1_larger_batches_are_normalised_as_usual():
    rows = torch.randn(5, 3)
    assert torch.allclose(RowBatchNorm(3)(rows), nn.BatchNorm1d(3)(rows))
