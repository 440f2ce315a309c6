import copy

import pytest
import torch
import torch.nn.functional as F

from pcdet.layers.sparse import SparseConvTensor
from pcdet.layers.voxel_pool import NeighborVoxelSAModuleMSG

GRID = (4, 6, 8)  # cells along z, y, x, of one metre


def layer_of(in_channels=3, **changes) -> NeighborVoxelSAModuleMSG:
    torch.manual_seed(0)
    options = {"query_ranges": [[2, 2, 2]], "radii": [1.8], "nsamples": [5], "mlps": [[6, 4]]} | changes
    return NeighborVoxelSAModuleMSG(in_channels, **options)


def voxels_at(zyx, features, scenes=None, batch_size=1) -> tuple[SparseConvTensor, torch.Tensor]:
    zyx = torch.tensor(zyx).view(-1, 3)
    scenes = torch.zeros(len(zyx), 1, dtype=torch.int64) if scenes is None else torch.tensor(scenes).view(-1, 1)
    tensor = SparseConvTensor(features, torch.cat([scenes, zyx], dim=1).int(), GRID, batch_size)
    return tensor, zyx.flip(1) + 0.5


def random_case(points=40, scenes=2, seed=0):
    """Voxels in a third of the cells of two scenes, and points in and around the grid."""
    draw = torch.Generator().manual_seed(seed)
    cells = scenes * 4 * 6 * 8
    flat = torch.randperm(cells, generator=draw)[: cells // 3].sort().values
    indices = torch.stack([flat // 192, flat // 48 % 4, flat // 8 % 6, flat % 8], dim=1)
    features = torch.randn(len(flat), 3, generator=draw, requires_grad=True)
    voxels = SparseConvTensor(features, indices.int(), GRID, scenes)
    xyz = torch.rand(points, 3, generator=draw) * torch.tensor([12.0, 10, 8]) - 2
    scene = torch.arange(points) * scenes // max(points, 1)
    coords = torch.cat([scene.unsqueeze(1), xyz.flip(1).floor().long()], dim=1)
    return voxels, indices[:, 1:].flip(1) + 0.5, xyz, coords


def published(layer, voxels, centres, points, coords):
    """As OpenPCDet computes it: all places of all points, with images and the norms of torch. -> (M, C')"""
    scales = []
    for i, (ranges, radius, size) in enumerate(layer.scales):
        rows, offsets = [], []
        features = F.linear(voxels.features, layer.mlps_in[i][0].weight[:, :, 0])
        norm = layer.mlps_in[i][1]
        features = F.batch_norm(features, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training)
        for point, coord in zip(points, coords, strict=True):
            near = (voxels.indices[:, 1:] - coord[1:]).abs() <= torch.tensor(ranges)
            near = near.all(dim=1) & (voxels.indices[:, 0] == coord[0])
            near = near & ((centres - point).square().sum(dim=1) <= radius**2)
            found = near.nonzero()[:size, 0].tolist()
            found += found[:1] * (size - len(found))
            rows.append(features[found] if found else torch.zeros(size, features.shape[1]))
            offsets.append(centres[found] - point if found else torch.zeros(size, 3))
        image = torch.stack(offsets).permute(2, 0, 1).unsqueeze(0)  # (1, 3, M, G)
        norm = layer.mlps_pos[i][1]
        image = F.conv2d(image, layer.mlps_pos[i][0].weight)
        image = F.batch_norm(image, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training, 0.1)
        image = torch.relu(image + torch.stack(rows).permute(2, 0, 1).unsqueeze(0))
        image = image.amax(dim=3) if layer.pool_method == "max_pool" else image.mean(dim=3)  # (1, C, M)
        norm = layer.mlps_out[i][1]
        image = F.conv1d(image, layer.mlps_out[i][0].weight)
        image = F.batch_norm(image, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training, 0.1)
        scales.append(torch.relu(image)[0].T)
    return torch.cat(scales, dim=1)


def test_by_hand():
    """Identities but for the norms' own scale: neighbours are features plus offsets, the maximum of which is kept."""
    layer = layer_of(mlps=[[3, 3]], nsamples=[2]).eval()
    for part in (layer.mlps_in, layer.mlps_pos, layer.mlps_out):
        part[0][0].weight.data = torch.eye(3).view_as(part[0][0].weight)
        part[0][1].eps = 0.0
    features = torch.tensor([[5.0, 0, -9], [1.0, 2, 0], [100, 100, 100]])
    voxels, centres = voxels_at([[0, 0, 0], [0, 0, 1], [0, 0, 4]], features)
    points = torch.tensor([[1.0, 0.5, 0.5], [7.0, 5.5, 0.5]])
    coords = torch.tensor([[0, 0, 0, 1], [0, 0, 5, 7]])
    # Offsets are -0.5 and 0.5 along x; the other point has no neighbour, and ReLU keeps the zeros.
    found = layer(voxels, centres, points, coords)
    torch.testing.assert_close(found, torch.tensor([[4.5, 2, 0], [0, 0, 0]]))
    layer.pool_method = "avg_pool"
    torch.testing.assert_close(layer(voxels, centres, points, coords)[0], torch.tensor([3.0, 1, 0]))


@pytest.mark.parametrize("method", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("training", [True, False])
def test_distinct_neighbours_with_weights_equal_all_places(method, training):
    scales = {
        "query_ranges": [[2, 2, 2], [1, 0, 3]],
        "radii": [1.8, 1.2],
        "nsamples": [5, 16],
        "mlps": [[6, 4], [5, 3]],
    }
    layer = layer_of(**scales, pool_method=method).train(training)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) / 3)
    twin = copy.deepcopy(layer)
    voxels, centres, points, coords = random_case()
    found, wanted = layer(voxels, centres, points, coords), published(twin, voxels, centres, points, coords)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    mine, theirs = dict(layer.named_buffers()), dict(twin.named_buffers())
    for name in mine:
        if "num_batches" not in name:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=1e-5, msg=name)
    pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    inputs = [voxels.features, *layer.parameters()], [voxels.features, *twin.parameters()]
    gradients = [torch.autograd.grad((out * pull).sum(), x) for out, x in zip((found, wanted), inputs, strict=True)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_scenes_do_not_see_each_other():
    layer = layer_of().eval()
    voxels, centres, points, coords = random_case()
    together = layer(voxels, centres, points, coords)
    for scene in range(2):
        own = voxels.indices[:, 0] == scene
        indices = voxels.indices[own] - torch.tensor([scene, 0, 0, 0], dtype=torch.int32)
        alone = SparseConvTensor(voxels.features[own], indices, GRID, 1)
        mine = coords[:, 0] == scene
        moved = coords[mine] - torch.tensor([scene, 0, 0, 0])
        torch.testing.assert_close(layer(alone, centres[own], points[mine], moved), together[mine])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("voxel_count, points", [(0, 7), (1, 7), (30, 0), (30, 1), (0, 0)])
def test_nothing_there(training, voxel_count, points):
    layer = layer_of().train(training)
    voxels, centres, xyz, coords = random_case(points=points)
    features = voxels.features[:voxel_count].detach().requires_grad_()
    few = SparseConvTensor(features, voxels.indices[:voxel_count], GRID, 2)
    out = layer(few, centres[:voxel_count], xyz, coords)
    assert out.shape == (points, 4)
    assert out.isfinite().all()
    out.sum().backward()
    assert features.grad is not None and features.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert all(buffer.isfinite().all() for buffer in layer.buffers())


def test_names_are_openpcdets():
    shapes = {name: tuple(value.shape) for name, value in layer_of().state_dict().items()}
    assert shapes["mlps_in.0.0.weight"] == (6, 3, 1)
    assert shapes["mlps_pos.0.0.weight"] == (6, 3, 1, 1)
    assert shapes["mlps_out.0.0.weight"] == (4, 6, 1)
    assert shapes["mlps_pos.0.1.running_var"] == (6,)
    assert len(shapes) == 3 * 6


def test_autocast_keeps_places_exact():
    layer = layer_of().eval()
    voxels, centres, points, coords = random_case()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = layer(voxels, centres, points, coords)
    torch.testing.assert_close(found.float(), layer(voxels, centres, points, coords), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"radii": [1.0, 2.0]}, "there are 1, 2, 1 and 1"),
        ({"mlps": [[6, 4, 4]]}, r"two widths, not \[\[6, 4, 4\]\]"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        layer_of(**changes)
