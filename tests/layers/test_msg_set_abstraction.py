"""Set abstraction of stacked scenes against the same network written out pair by pair, with torch's own layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pcdet.layers.msg_set_abstraction import FeaturePropagation, GlobalSetAbstraction, MSGSetAbstraction
from pcdet.layers.row_mlp import RowMLP

RADII, SIZES, WIDTHS = [0.4, 0.9], [4, 8], [[6, 5], [7]]


def written_out(mlp: RowMLP) -> nn.Sequential:
    """The same layers as torch's own, over rows."""
    layers = []
    for convolution, norm in zip(list(mlp)[0::3], list(mlp)[1::3], strict=True):
        linear = nn.Linear(convolution.in_channels, convolution.out_channels, bias=False)
        linear.weight.data = convolution.weight.detach().flatten(1).clone()
        twin = nn.BatchNorm1d(norm.num_features)
        twin.load_state_dict(norm.state_dict())
        layers += [linear, twin, nn.ReLU()]
    return nn.Sequential(*layers)


def furthest(cloud, count):
    chosen = [0]
    for _ in range(count - 1):
        chosen.append(int(torch.cdist(cloud, cloud[chosen]).amin(dim=1).argmax()))
    return cloud[chosen]


def neighbours_of(cloud, centre, radius, size):
    """The first ones in index order, then the first again."""
    near = ((cloud - centre).square().sum(dim=1) < radius**2).nonzero()[:, 0][:size]
    return torch.cat([near, near[:1].expand(size - len(near))])


def abstraction_written_out(level, clouds, features, samples):
    """Features of all centres, from equally many rows for each; one scene after another."""
    centres = [furthest(cloud, count) for cloud, count in zip(clouds, samples, strict=True)]
    scales = []
    for mlp, radius, size in zip(level.mlps, RADII, SIZES, strict=True):
        rows = []
        for cloud, values, chosen in zip(clouds, features, centres, strict=True):
            for centre in chosen:
                index = neighbours_of(cloud, centre, radius, size)
                rows.append(torch.cat([cloud[index] - centre, values[index]], dim=1))
        rows = torch.stack(rows)  # (M, G, 3 + C)
        out = written_out(mlp).train(level.training)(rows.flatten(0, 1)).view(len(rows), size, -1)
        scales.append(out.max(dim=1).values)
    return torch.cat(centres), torch.cat(scales, dim=1)


@pytest.fixture
def level():
    torch.manual_seed(0)
    return MSGSetAbstraction(2, RADII, SIZES, WIDTHS)


def scenes(*counts, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, generator=draw) for n in counts], [torch.randn(n, 2, generator=draw) for n in counts]


def run(level, clouds, features, samples, **options):
    counts = torch.tensor([len(cloud) for cloud in clouds])
    return level(torch.cat(clouds), counts, torch.cat(features), torch.tensor(samples), **options)


def test_names_and_shapes_are_those_of_convolutions(level):
    shapes = {name: tuple(p.shape) for name, p in level.named_parameters()}
    assert shapes["mlps.0.0.weight"] == (6, 5, 1, 1)
    assert shapes["mlps.0.3.weight"] == (5, 6, 1, 1)
    assert shapes["mlps.1.1.bias"] == (7,)
    assert level.out_channels == 12


@pytest.mark.parametrize("training", [True, False])
def test_equals_the_network_written_out(level, training):
    level.train(training)
    clouds, features = scenes(40, 25)
    for values in features:
        values.requires_grad_()
    wanted_centres, wanted = abstraction_written_out(level, clouds, features, [9, 6])
    pull = torch.randn_like(wanted)
    wanted_grads = torch.autograd.grad((wanted * pull).sum(), features)
    centres, out = run(level, clouds, features, [9, 6])
    assert torch.equal(centres, wanted_centres)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad((out * pull).sum(), features), wanted_grads, rtol=1e-3, atol=1e-5)


def test_centres_beyond_the_points_repeat_the_first(level):
    clouds, features = scenes(5)
    centres, out = run(level, clouds, features, [8])
    assert torch.equal(centres[5:], clouds[0][:1].expand(3, 3))
    torch.testing.assert_close(out[5:], out[:1].expand(3, -1))
    torch.testing.assert_close(out, abstraction_written_out(level, clouds, features, [8])[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 16])
def test_a_cycle_stands_for_the_points_repeated(level, count):
    """Points 0 1 2 0 1 2 0 ...: the statistics are those of all of them, the rows computed those of three."""
    clouds, features = scenes(count, 4)
    places = torch.arange(16)
    whole = [[part[places % len(part)] for part in parts] for parts in (clouds, features)]
    _, wanted = abstraction_written_out(level, *whole, [16, 16])
    samples = torch.tensor([count, 4])
    weight = torch.ones(count + 4, dtype=torch.int64)
    weight[torch.tensor([0, count])] += 16 - samples
    _, out = run(level, clouds, features, samples.tolist(), weight=weight, cycle=16)
    torch.testing.assert_close(out[:count], wanted[:count], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out[count:], wanted[16:20], rtol=1e-4, atol=1e-5)


def test_without_offsets_only_the_features_enter():
    level = MSGSetAbstraction(2, RADII, SIZES, WIDTHS, use_xyz=False).eval()
    assert level.mlps[0][0].weight.shape == (6, 2, 1, 1)
    clouds, features = scenes(30)
    flat = [torch.ones(30, 2)]
    _, out = run(level, clouds, flat, [4])
    torch.testing.assert_close(out, out[:1].expand(4, -1))
    assert not torch.equal(run(level, clouds, features, [4])[1], out)
    with pytest.raises(ValueError, match="USE_XYZ"):
        MSGSetAbstraction(0, RADII, SIZES, WIDTHS, use_xyz=False)


def test_points_without_features():
    level = MSGSetAbstraction(0, RADII, SIZES, WIDTHS)
    clouds, _ = scenes(30)
    _, out = level(clouds[0], torch.tensor([30]), None, torch.tensor([4]))
    assert out.shape == (4, 12) and out.isfinite().all()


def test_an_empty_scene_has_no_centres_and_changes_nothing(level):
    level.eval()
    clouds, features = scenes(20)
    empty = clouds[0][:0], features[0][:0]
    alone = run(level, clouds, features, [5])
    beside = run(level, [empty[0], *clouds, empty[0]], [empty[1], *features, empty[1]], [0, 5, 0])
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))
    nothing = run(level.train(), [empty[0]], [empty[1]], [0])
    assert [tuple(part.shape) for part in nothing] == [(0, 3), (0, 12)]
    nothing[1].sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in level.parameters())


def test_a_whole_scene_is_the_maximum_over_its_points():
    torch.manual_seed(0)
    level = GlobalSetAbstraction(2, [6, 5])
    clouds, features = scenes(7, 3)
    weight = torch.ones(10, dtype=torch.int64)
    weight[0] += 4
    whole = torch.cat([torch.cat(clouds), torch.cat(features)], dim=1)
    rows = written_out(level.mlps[0])(torch.cat([whole, whole[:1].expand(4, -1)]))
    out = level(torch.cat(clouds), torch.tensor([7, 0, 3]), torch.cat(features), weight)
    torch.testing.assert_close(out[0], rows[:7].amax(dim=0), rtol=1e-4, atol=1e-5)
    assert not out[1].any()
    torch.testing.assert_close(out[2], rows[7:10].amax(dim=0), rtol=1e-4, atol=1e-5)


def identity(channels: int) -> FeaturePropagation:
    """A propagation whose MLP changes nothing that is positive."""
    module = FeaturePropagation(1, channels - 1, [channels]).eval()
    module.mlp[0].weight.data = torch.eye(channels)[:, :, None, None]
    module.mlp[1].eps = 0.0
    return module


def test_interpolation_by_hand():
    """At x = 1 between known points at 0, 2 and 4: weights 1, 1 and 1/3 of 7/3."""
    known = torch.tensor([[0.0, 0, 0], [2, 0, 0], [4, 0, 0]])
    points, skip = torch.tensor([[1.0, 0, 0], [4, 0, 0]]), torch.tensor([[5.0], [6.0]])
    values = torch.tensor([[1.0], [2.0], [9.0]])
    out = identity(2)(points, torch.tensor([2]), skip, known, torch.tensor([3]), values)
    torch.testing.assert_close(out, torch.tensor([[(1 + 2 + 3) * 3 / 7, 5.0], [9.0, 6.0]]))


@pytest.mark.parametrize("channels", [0, 3])
def test_propagation_equals_interpolation_then_the_network(channels):
    torch.manual_seed(0)
    module = FeaturePropagation(4, channels, [6, 5])
    points, known = torch.rand(2, 20, 3), torch.rand(2, 7, 3)
    skip, values = torch.randn(40, channels), torch.randn(14, 4, requires_grad=True)
    distance, index = torch.cdist(points, known).topk(3, largest=False)  # (2, 20, 3)
    weight = F.normalize(1 / (distance + 1e-8), p=1, dim=2).flatten(0, 1)
    taken = values[(index + torch.tensor([0, 7])[:, None, None]).flatten(0, 1)]  # (40, 3, 4)
    wanted = written_out(module.mlp)(torch.cat([(taken * weight[..., None]).sum(dim=1), skip], dim=1))
    counts = torch.tensor([20, 20]), torch.tensor([7, 7])
    out = module(
        points.flatten(0, 1), counts[0], skip if channels else None, known.flatten(0, 1), counts[1], values
    )  # (40, 5)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    pull = torch.randn_like(out)
    grads = [torch.autograd.grad((x * pull).sum(), values)[0] for x in (out, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)


def test_few_known_points_are_enough():
    """Of one known point the feature is taken as it is; no points at all have no features."""
    points, values = torch.rand(3, 3), torch.tensor([[4.0]])
    out = identity(1)(points, torch.tensor([3]), None, points[:1], torch.tensor([1]), values)
    torch.testing.assert_close(out, torch.full((3, 1), 4.0))
    empty = identity(1)(points[:0], torch.tensor([0]), None, points[:0], torch.tensor([0]), values[:0])
    assert empty.shape == (0, 1)
