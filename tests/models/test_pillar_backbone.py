"""Pillar backbones: names, sizes, invariances; the two-level and residual backbones over the bird's-eye view."""

import json

import pytest
import torch

from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.backbones_2d.base_bev_backbone_v1 import BaseBEVBackboneV1
from pcdet.models.backbones_3d.pillar_backbone import PillarBackBone8x, PillarRes18BackBone8x
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(
    class_names=("Car",),
    point_features=("x", "y", "z", "intensity"),
    point_cloud_range=(0.0, -1.6, -3.0, 1.6, 1.6, 1.0),
    voxel_size=(0.05, 0.05, 0.1),
    grid_size=(32, 64, 40),
)
NECK = {"layer_nums": [1, 1], "num_filters": [256, 256], "upsample_strides": [1, 2], "num_upsample_filters": [128, 128]}


def pillars(count: int, batch_size: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    grid = (batch_size, 64, 32)
    cells = torch.randperm(torch.Size(grid).numel(), generator=draw)[:count]
    coords = torch.stack(torch.unravel_index(cells, grid), dim=1).int()
    return torch.randn(count, 32, generator=draw), coords


def make(kind):
    torch.manual_seed(0)
    return kind(INFO, {"pillar_features": 32})


@pytest.mark.parametrize("kind", [PillarBackBone8x, PillarRes18BackBone8x])
def test_the_levels_are_halved_and_the_last_two_are_dense(kind):
    features, coords = pillars(200)
    model = make(kind)
    out = model(features, coords, 2)
    levels = out.multi_scale_2d_features
    assert out.multi_scale_2d_strides == {"x_conv1": 1, "x_conv2": 2, "x_conv3": 4, "x_conv4": 8, "x_conv5": 16}
    assert [levels[f"x_conv{n}"].spatial_shape for n in (1, 2, 3)] == [(64, 32), (32, 16), (16, 8)]
    assert torch.equal(levels["x_conv1"].indices, coords)
    assert levels["x_conv4"].shape == (2, 256, 8, 4) and levels["x_conv5"].shape == (2, 256, 4, 2)
    assert model.out_channels == {"x_conv1": 32, "x_conv2": 64, "x_conv3": 128, "x_conv4": 256, "x_conv5": 256}
    levels["x_conv5"].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", [PillarBackBone8x, PillarRes18BackBone8x])
def test_a_batch_of_two_equals_two_of_one(kind):
    features, coords = pillars(200)
    model = make(kind).eval()
    both = model(features, coords, 2).multi_scale_2d_features["x_conv5"]
    for scene in (0, 1):
        rows = coords[:, 0] == scene
        alone = coords[rows] * torch.tensor([0, 1, 1], dtype=torch.int32)
        one = model(features[rows], alone, 1).multi_scale_2d_features["x_conv5"]
        assert torch.allclose(one[0], both[scene], atol=1e-5)


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("kind", [PillarBackBone8x, PillarRes18BackBone8x])
def test_no_pillar_and_one_pillar_in_training(kind, count):
    features, coords = pillars(count)
    out = make(kind).train()(features, coords, 2).multi_scale_2d_features
    assert out["x_conv4"].isfinite().all() and out["x_conv5"].isfinite().all()


def test_a_residual_block_adds_its_input():
    """With the last norm at zero only the shortcut is left, through the ReLU."""
    block = make(PillarRes18BackBone8x).conv1[0].eval()
    torch.nn.init.zeros_(block.bn2.weight)
    features, coords = pillars(20)
    out = block(SparseConvTensor(features, coords, (64, 32), 2)).features
    assert torch.equal(out, features.relu())


def test_names_and_shapes_are_those_of_checkpoints(shared):
    table = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())["state_dicts"]
    recorded = next(table[name] for name in table if "pillarnet" in name)
    neck = BaseBEVBackboneV1(INFO, {"x_conv4": 256, "x_conv5": 256}, **(NECK | {"layer_nums": [5, 5]}))
    mine = {
        f"{slot}.{name}": list(value.shape)
        for slot, module in (("backbone_3d", make(PillarBackBone8x)), ("backbone_2d", neck))
        for name, value in module.state_dict().items()
    }
    wanted = {name: shape for name, shape in recorded.items() if name.startswith("backbone")}
    assert list(mine.items()) == list(wanted.items())


def test_the_residual_backbone_is_as_large_as_the_published_one():
    """PillarNet-18 for Waymo has 14,067,851 parameters in 307 entries, of which its head has 339,275 in 52."""
    neck = BaseBEVBackboneV1(INFO, {"x_conv4": 256, "x_conv5": 256}, **(NECK | {"layer_nums": [5, 5]}))
    parts = [make(PillarRes18BackBone8x), neck]
    encoder = 32 * 8 + 2 * 32  # 5 point features and 3 offsets into 32 channels, and a norm
    assert sum(p.numel() for part in parts for p in part.parameters()) == 14_067_851 - 339_275 - encoder
    assert sum(len(part.state_dict()) for part in parts) == 307 - 52 - 6 - 1


def test_other_pillar_widths_are_named():
    with pytest.raises(ValueError, match="PillarBackBone8x takes pillars with 32 channels, not 64"):
        PillarBackBone8x(INFO, {"pillar_features": 64})
