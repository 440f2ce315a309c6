"""Vector pools against plain loops, by hand, and with awkward scenes."""

import itertools

import pytest
import torch
from torch import nn

import pcdet.layers.vector_pool as vector_pool
from pcdet.layers.vector_pool import VectorPoolAggregationModule, VectorPoolAggregationModuleMSG

KINDS = ["local_interpolation", "voxel_avg_pool", "voxel_random_choice"]


def pool_of(kind, **changes) -> VectorPoolAggregationModule:
    torch.manual_seed(0)
    options = {
        "num_local_voxel": [2, 1, 3],
        "max_neighbor_distance": 0.6,
        "neighbor_nsample": -1,
        "post_mlps": [5, 4],
        "num_channels_of_local_aggregation": 3,
        "num_reduced_channels": 2,
    }
    pool = VectorPoolAggregationModule(4, local_aggregation_type=kind, **options | changes)
    for norm in pool.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
    return pool


@pytest.fixture
def scenes():
    """Two scenes; some centres are far from every point."""
    draw = torch.Generator().manual_seed(1)
    centres = torch.rand(13, 3, generator=draw) * 2
    centres[[0, 7, 12]] += 50
    xyz, features = torch.rand(70, 3, generator=draw) * 2, torch.randn(70, 4, generator=draw)
    return xyz, torch.tensor([40, 30]), centres, torch.tensor([8, 5]), features


def interpolated(xyz, features, centre):
    """The cells around one centre: features of the three nearest neighbours mixed, and their offsets."""
    cells = []
    near = ((xyz - centre).abs() <= 2 * 0.6).all(dim=1).nonzero()[:, 0]
    for place in itertools.product((-0.3, 0.3), (0.0,), (-0.4, 0.0, 0.4)):
        at = centre + torch.tensor(place)
        if len(near) == 0:
            cells.append(torch.zeros(2 + 9))
            continue
        distance = (xyz[near] - at).norm(dim=1)
        order = distance.argsort()[:3]
        order = torch.cat([order, order[:1].repeat(3 - len(order))])
        weight = 1 / (distance[order] + 1e-8)
        mixed = (features[near[order]] * (weight / weight.sum()).unsqueeze(1)).sum(0)
        cells.append(torch.cat([mixed, (at - xyz[near[order]]).flatten()]))
    return torch.stack(cells)


def pooled(kind):
    def cells_of(xyz, features, centre):
        """The cells around one centre: offset and features of the mean or of the first neighbour in each."""
        offset = xyz - centre
        inside = (offset.abs() < 0.6).all(dim=1)
        cell = ((offset + 0.6) / torch.tensor([0.6, 1.2, 0.4])).long() @ torch.tensor([3, 3, 1])
        rows = torch.cat([offset, features], dim=1)
        cells = []
        for t in range(6):
            found = rows[inside & (cell == t)]
            cells.append(rows.new_zeros(5) if not len(found) else found.mean(0) if "avg" in kind else found[0])
        return torch.stack(cells)

    return cells_of


def plain_pool(pool, kind, xyz, counts, centres, centre_counts, features):
    describe = interpolated if kind == "local_interpolation" else pooled(kind)
    features = features[:, :2] + features[:, 2:]  # four channels folded to two
    points = zip(xyz.split(counts.tolist()), features.split(counts.tolist()), strict=True)
    cells = [
        describe(*scene, centre)
        for scene, some in zip(points, centres.split(centre_counts.tolist()), strict=True)
        for centre in some
    ]
    rows = torch.stack(cells).flatten(1).T[None]  # (1, T * I, M)
    for module in (*pool.separate_local_aggregation_layer, *pool.post_mlps):
        if isinstance(module, nn.Conv1d):
            rows = nn.functional.conv1d(rows, module.weight, groups=module.groups)
        elif isinstance(module, nn.BatchNorm1d):
            twin = nn.BatchNorm1d(module.num_features).train(module.training)
            twin.load_state_dict(module.state_dict())
            rows = twin(rows)
        else:
            rows = rows.relu()
    return rows[0].T


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_plain_loop(scenes, kind, training):
    pool = pool_of(kind).train(training)
    xyz, counts, centres, centre_counts, features = scenes
    features.requires_grad_()
    expected = plain_pool(pool, kind, *scenes)
    mine = pool(*scenes)
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
    pull = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad((expected * pull).sum(), features)
    (found,) = torch.autograd.grad((mine * pull).sum(), features)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_centres_change_nothing(scenes, kind, monkeypatch):
    pool = pool_of(kind).eval()
    expected = pool(*scenes)
    for size in (1, 3, 8):
        monkeypatch.setattr(vector_pool, "CENTRES_AT_ONCE", size)
        torch.testing.assert_close(pool(*scenes), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("points, wanted", [([0, 5], [3, 2]), ([0, 0], [2, 1]), ([4, 0], [0, 0]), ([3], [1])])
def test_scenes_without_points_or_centres(kind, training, points, wanted):
    msg = VectorPoolAggregationModuleMSG([pool_of(kind)], [6]).train(training)
    features = torch.randn(sum(points), 4, requires_grad=True)
    centres = torch.rand(sum(wanted), 3)
    out = msg(torch.rand(sum(points), 3), torch.tensor(points), centres, torch.tensor(wanted), features)
    out.sum().backward()
    assert out.shape == (sum(wanted), 6) and out.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in msg.parameters())


def test_pools_stand_side_by_side_with_the_centre(scenes):
    pools = [pool_of("local_interpolation"), pool_of("voxel_avg_pool", post_mlps=[7])]
    msg = VectorPoolAggregationModuleMSG(pools, [6]).eval()
    weight = msg.msg_post_mlps[0].weight
    assert weight.shape == (6, 3 + 4 + 7, 1) and msg.out_channels == 6
    rows = torch.cat([scenes[2], pools[0](*scenes), pools[1](*scenes)], dim=1)
    expected = msg.msg_post_mlps[1:](rows @ weight[:, :, 0].T)
    torch.testing.assert_close(msg(*scenes), expected)


def test_names_and_shapes_are_those_of_checkpoints():
    msg = VectorPoolAggregationModuleMSG([pool_of("local_interpolation"), pool_of("voxel_random_choice")], [6])
    shapes = {name: tuple(value.shape) for name, value in msg.state_dict().items()}
    assert shapes["layer_0.separate_local_aggregation_layer.0.weight"] == (18, 11, 1)
    assert shapes["layer_1.separate_local_aggregation_layer.0.weight"] == (18, 5, 1)
    assert shapes["layer_1.post_mlps.0.weight"] == (5, 18, 1) and shapes["layer_1.post_mlps.4.bias"] == (4,)
    assert not any("cell_offsets" in name for name in shapes)


def test_channels_must_be_foldable():
    assert pool_of("voxel_avg_pool", num_reduced_channels=None).reduced == 4
    with pytest.raises(ValueError, match="NUM_REDUCED_CHANNELS is 3, but must divide the 4 channels"):
        pool_of("voxel_avg_pool", num_reduced_channels=3)
