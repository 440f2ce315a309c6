"""Set abstraction of stacked scenes against a plain loop with torch's own convolutions, and with awkward scenes."""

import pytest
import torch
from torch import nn

from pcdet.layers.stacked_set_abstraction import StackSAModuleMSG, distinct_neighbours

RADII, SIZES = (0.8, 1.6), (4, 6)


def layer_of(channels=2) -> StackSAModuleMSG:
    torch.manual_seed(0)
    layer = StackSAModuleMSG(channels, RADII, SIZES, [[5, 7], [6]])
    for norm in layer.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
    return layer


@pytest.fixture
def scenes():
    """Two scenes; some centres are far from every point."""
    draw = torch.Generator().manual_seed(1)
    counts, centre_counts = torch.tensor([40, 25]), torch.tensor([9, 6])
    centres = torch.randn(15, 3, generator=draw)
    centres[[2, 10, 14]] += 50
    return torch.randn(65, 3, generator=draw), counts, centres, centre_counts, torch.randn(65, 2, generator=draw)


def plain_groups(xyz, counts, centres, centre_counts, features, radius, size):
    """Every place of every ball, (M, 3 + C, G), zeros where a ball is empty."""
    groups, start, first = [], 0, 0
    for count, wanted in zip(counts.tolist(), centre_counts.tolist(), strict=True):
        scene = slice(start, start + count)
        for centre in centres[first : first + wanted]:
            offset = xyz[scene] - centre
            near = (offset.square().sum(1) < radius**2).nonzero()[:, 0][:size]
            rows = offset if features is None else torch.cat([offset, features[scene]], dim=1)
            near = torch.cat([near, near[:1].repeat(size - len(near))])
            groups.append(rows[near].T if len(near) else rows.new_zeros(rows.shape[1], size))
        start, first = start + count, first + wanted
    return torch.stack(groups)


def plain_layer(layer, norms, *scene):
    scales = []
    for radius, size, mlp, norm in zip(RADII, SIZES, layer.mlps, norms, strict=True):
        x = plain_groups(*scene, radius, size).transpose(0, 1)[None]  # (1, C, M, G)
        for conv, own in zip(list(mlp)[::3], norm, strict=True):
            x = nn.functional.conv2d(x, conv.weight).squeeze(0).flatten(1).T  # (M * G, C)
            x = own(x).relu().T.reshape(1, conv.out_channels, -1, size)
        scales.append(x.amax(dim=3)[0].T)
    return torch.cat(scales, dim=1)


def twin_norms(layer):
    norms = []
    for mlp in layer.mlps:
        norms.append([nn.BatchNorm1d(norm.num_features) for norm in list(mlp)[1::3]])
        for mine, own in zip(norms[-1], list(mlp)[1::3], strict=True):
            mine.load_state_dict(own.state_dict())
            mine.train(own.training)
    return norms


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels", [2, 0])
def test_equals_the_plain_loop(scenes, training, channels):
    layer = layer_of(channels).train(training)
    xyz, counts, centres, centre_counts, features = scenes
    features = features.requires_grad_() if channels else None
    norms = twin_norms(layer)
    mine = layer(xyz, counts, centres, centre_counts, features)
    expected = plain_layer(layer, norms, xyz, counts, centres, centre_counts, features)
    assert mine.shape == (15, 13)
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    inputs = [p for name, p in layer.named_parameters() if name.split(".")[2] in "03"] + [features] * bool(channels)
    pull = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * pull).sum(), inputs)
    for found, grad in zip(torch.autograd.grad((mine * pull).sum(), inputs), wanted, strict=True):
        torch.testing.assert_close(found, grad, rtol=1e-3, atol=1e-4)
    for own, twin in zip((n for mlp in layer.mlps for n in list(mlp)[1::3]), sum(norms, []), strict=True):
        torch.testing.assert_close(own.running_mean, twin.running_mean)
        torch.testing.assert_close(own.running_var, twin.running_var)


def test_pairs_by_hand():
    """A full ball, one with two of three places filled, an empty one."""
    index = torch.tensor([[4, 5, 6], [7, 9, 7], [0, 0, 0]])
    pairs = distinct_neighbours(index, torch.tensor([3, 2, 0]), num_points=20)
    assert pairs.point.tolist() == [4, 5, 6, 7, 9, 20]
    assert pairs.centre.tolist() == [0, 0, 0, 1, 1, 2]
    assert pairs.weight.tolist() == [1, 1, 1, 2, 1, 3]
    assert pairs.per_centre.tolist() == [3, 2, 1]


def test_a_batch_of_two_equals_two_of_one(scenes):
    layer = layer_of().eval()
    xyz, counts, centres, centre_counts, features = scenes
    both = layer(*scenes)
    first = layer(xyz[:40], counts[:1], centres[:9], centre_counts[:1], features[:40])
    second = layer(xyz[40:], counts[1:], centres[9:], centre_counts[1:], features[40:])
    torch.testing.assert_close(both, torch.cat([first, second]))


def test_offsets_far_from_the_origin_keep_their_digits(scenes):
    layer = layer_of().eval()
    xyz, counts, centres, centre_counts, features = scenes
    far = torch.tensor([64.0, -32.0, 0.0])
    near = layer(xyz, counts, centres, centre_counts, features)
    torch.testing.assert_close(
        layer(xyz + far, counts, centres + far, centre_counts, features), near, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("points, wanted", [([0, 5], [3, 2]), ([0, 0], [2, 1]), ([4, 0], [0, 0]), ([1], [1])])
def test_scenes_without_points_or_centres(training, points, wanted):
    layer = layer_of().train(training)
    features = torch.randn(sum(points), 2, requires_grad=True)
    centres = torch.randn(sum(wanted), 3)
    out = layer(torch.randn(sum(points), 3), torch.tensor(points), centres, torch.tensor(wanted), features)
    out.sum().backward()
    assert out.shape == (sum(wanted), 13) and out.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_names_and_shapes_are_those_of_checkpoints():
    shapes = {name: tuple(p.shape) for name, p in layer_of().named_parameters()}
    assert shapes["mlps.0.0.weight"] == (5, 5, 1, 1) and shapes["mlps.0.3.weight"] == (7, 5, 1, 1)
    assert shapes["mlps.1.0.weight"] == (6, 5, 1, 1) and shapes["mlps.1.1.bias"] == (6,)
    assert len(shapes) == 9


def test_lists_must_fit():
    with pytest.raises(ValueError, match="2 radii, 1 numbers of samples and 2 MLPs"):
        StackSAModuleMSG(1, [1.0, 2.0], [16], [[4], [4]])
