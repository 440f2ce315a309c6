"""Multi-scale set abstraction of dense clouds, and the two orders of offset and features."""

import pytest
import torch
from torch import nn

from pcdet.layers.set_abstraction import MultiScaleAbstraction, SetAbstraction, SharedMLP


@pytest.fixture
def clouds():
    return torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0))


def filled(module):
    """As after some training."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return module.eval()


def level(in_channels, **options):
    torch.manual_seed(1)
    return filled(MultiScaleAbstraction(in_channels, 8, [0.4, 0.9], [4, 6], [[5, 7], [4]], **options))


def plain_loop(module, cloud, features):
    """One cloud as the paper has it, features before the offset where the module says so."""
    chosen = [0]
    while len(chosen) < module.num_centres:
        chosen.append(int(torch.cdist(cloud, cloud[chosen]).min(dim=1).values.argmax()))
    out = []
    for centre in cloud[chosen]:
        scales = []
        for (radius, size), mlp in zip(module.balls, module.mlps, strict=True):
            near = torch.nonzero((cloud - centre).norm(dim=1) < radius)[:, 0][:size]
            parts = [cloud[near] - centre, features[near]]
            rows = torch.cat(parts[::-1] if module.features_first else parts, dim=1)
            for linear, norm in zip(mlp.linears, mlp.norms, strict=True):
                rows = torch.relu(norm(linear(rows)))
            scales.append(rows.max(dim=0).values)
        out.append(torch.cat(scales))
    return torch.stack(out)


@pytest.mark.parametrize("features_first", [True, False])
@pytest.mark.parametrize("channels", [0, 4])
def test_as_the_paper_has_it(clouds, channels, features_first):
    module = level(channels, features_first=features_first)
    features = torch.randn(2, 60, channels)
    centres, found = module(clouds, features if channels else None)
    assert centres.shape == (2, 8, 3) and found.shape == (2, 8, 11) and module.out_channels == 11
    for b in range(2):
        assert torch.allclose(found[b], plain_loop(module, clouds[b], features[b]), atol=1e-5)


def test_one_scale_is_single_scale_grouping(clouds):
    torch.manual_seed(1)
    single = filled(SetAbstraction(0, 8, 0.9, 6, [5, 7]))
    several = filled(MultiScaleAbstraction(0, 8, [0.9], [6], [[5, 7]]))
    several.mlps[0].load_state_dict(single.mlp.state_dict())
    assert torch.equal(single(clouds, None)[1], several(clouds, None)[1])


def test_both_orders_are_the_same_function_with_permuted_columns(clouds):
    features = torch.randn(2, 60, 4)
    torch.manual_seed(1)
    first = filled(SetAbstraction(4, 8, 0.9, 6, [5, 7], features_first=True))
    last = filled(SetAbstraction(4, 8, 0.9, 6, [5, 7]))
    last.load_state_dict(first.state_dict())
    assert not torch.allclose(first(clouds, features)[1], last(clouds, features)[1], atol=1e-2)
    weight = first.mlp.linears[0].weight.detach()  # (C1, 4 + 3)
    last.mlp.linears[0].weight.data = torch.cat([weight[:, 4:], weight[:, :4]], dim=1)
    assert torch.allclose(first(clouds, features)[1], last(clouds, features)[1], atol=1e-5)


def test_gradients_reach_points_features_and_parameters(clouds):
    module, features = level(4).train(), torch.randn(2, 60, 4, requires_grad=True)
    points = clouds.clone().requires_grad_()
    module(points, features)[1].square().sum().backward()
    for value in (points, features, *module.parameters()):
        assert torch.isfinite(value.grad).all()
    assert points.grad.abs().sum() > 0 and features.grad.abs().sum() > 0


def test_scales_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="2 radii, 1 numbers and 2 MLPs"):
        MultiScaleAbstraction(0, 8, [0.1, 0.2], [4], [[5], [5]])


def test_the_last_relu_can_be_left_out():
    mlp = SharedMLP([3, 4], last_relu=False)
    rows = mlp.rest(mlp.first(torch.randn(64, 3)))
    assert (rows < 0).any()
    mlp.last_relu = True
    assert (mlp.rest(mlp.first(torch.randn(64, 3))) >= 0).all()
