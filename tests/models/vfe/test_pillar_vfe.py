import pytest
import torch
import torch.nn.functional as F

from pcdet.models.vfe.pillar_vfe import PillarFeatureLayer, PillarVFE, distinct_rows
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car",), ("x", "y", "z", "i"), (0, -4, -3, 8, 4, 1), (0.5, 0.5, 4.0), (16, 16, 1), 5)
CHANNELS = {"voxels": 4}


def pillars(counts, seed=0, size=5):
    draw = torch.Generator().manual_seed(seed)
    number = torch.tensor(counts, dtype=torch.int32)
    real = torch.arange(size) < number.unsqueeze(1)
    voxels = torch.rand(len(counts), size, 4, generator=draw) * real.unsqueeze(2)
    coords = torch.randint(0, 16, (len(counts), 4), generator=draw, dtype=torch.int32) * torch.tensor([0, 0, 1, 1])
    return voxels, number, coords.int()


def plain_features(vfe, voxels, number, coords):
    """The encoder on all V * P rows, as it is written in the paper and the published code."""
    xyz = voxels[..., :3]
    mean = xyz.sum(1, keepdim=True) / number.view(-1, 1, 1)
    centre = (coords[:, [3, 2, 1]] + 0.5) * torch.tensor(INFO.voxel_size) + torch.tensor(INFO.point_cloud_range[:3])
    parts = [voxels if vfe.use_absolute_xyz else voxels[..., 3:], xyz - mean, xyz - centre.unsqueeze(1)]
    if vfe.with_distance:
        parts.append(xyz.norm(dim=2, keepdim=True))
    x = torch.cat(parts, 2) * (torch.arange(voxels.shape[1]) < number.unsqueeze(1)).unsqueeze(2)
    for layer in vfe.pfn_layers:
        x = layer.linear(x)
        if layer.norm is not None:
            x = layer.norm(x.permute(0, 2, 1)).permute(0, 2, 1)
        x = F.relu(x)
        highest = x.max(dim=1, keepdim=True)[0]
        x = highest.squeeze(1) if layer.last else torch.cat([x, highest.expand_as(x)], dim=2)
    return x


def test_offsets_by_hand():
    """Two points of the pillar in row 8, column 2: x 1.0 to 1.5, y 0 to 0.5, z -3 to 1; centre (1.25, 0.25, -1)."""
    vfe = PillarVFE(INFO, CHANNELS, num_filters=[10], use_norm=False)
    layer = vfe.pfn_layers[0]
    layer.linear.weight.data = torch.eye(10)
    layer.linear.bias.data.zero_()
    points = torch.tensor([[1.1, 0.1, -1.0, 0.3], [1.3, 0.3, 0.0, 0.5]])
    voxels = torch.zeros(1, 5, 4)
    voxels[0, :2] = points
    found = vfe(voxels, torch.tensor([2], dtype=torch.int32), torch.tensor([[0, 0, 8, 2]])).pillar_features
    rows = torch.cat(
        [points, points[:, :3] - torch.tensor([1.2, 0.2, -0.5]), points[:, :3] - torch.tensor([1.25, 0.25, -1])], 1
    )
    torch.testing.assert_close(found[0], rows.amax(0).clamp(min=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"num_filters": [8]},
        {"num_filters": [8, 12]},
        {"num_filters": [8], "use_norm": False},
        {"num_filters": [8], "with_distance": True},
        {"num_filters": [8], "use_abslote_xyz": False},
    ],
)
def test_fewer_rows_give_the_same_as_all_rows(options, training):
    torch.manual_seed(0)
    vfe, twin = (PillarVFE(INFO, CHANNELS, **options) for _ in range(2))
    twin.load_state_dict(vfe.state_dict())
    vfe.train(training), twin.train(training)
    batch = pillars([1, 5, 3, 2, 5, 1, 4])
    found, wanted = vfe(*batch).pillar_features, plain_features(twin, *batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * weight).sum().backward()
    (wanted * weight).sum().backward()
    for (name, a), b in zip(vfe.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4, msg=name)
    for (name, a), b in zip(vfe.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)


def test_rows_that_differ():
    voxels, number, _ = pillars([2, 5, 1])
    rows = distinct_rows(voxels, number)
    assert rows.per_pillar.tolist() == [3, 5, 2]
    assert rows.weight.tolist() == [1, 1, 3, 1, 1, 1, 1, 1, 1, 4]
    assert rows.pillar.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
    assert torch.equal(rows.points[:2], voxels[0, :2]) and (rows.points[2] == 0).all()


def test_no_pillars_leave_the_statistics_alone():
    layer = PillarFeatureLayer(4, 8, use_norm=True, last=True).train()
    empty = distinct_rows(torch.zeros(0, 5, 4), torch.zeros(0, dtype=torch.int32))
    out = layer(empty)
    assert out.shape == (0, 8)
    out.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert (layer.norm.running_var == 1).all() and layer.norm.num_batches_tracked == 0


def test_the_order_of_points_does_not_matter():
    torch.manual_seed(0)
    vfe = PillarVFE(INFO, CHANNELS, num_filters=[8])
    voxels, number, coords = pillars([4, 5])
    turned = voxels.clone()
    turned[0, :4] = voxels[0, [2, 0, 3, 1]]
    torch.testing.assert_close(vfe(turned, number, coords), vfe(voxels, number, coords), rtol=1e-5, atol=1e-6)


def test_no_layers_are_refused():
    with pytest.raises(ValueError, match="NUM_FILTERS is empty"):
        PillarVFE(INFO, CHANNELS, num_filters=[])
