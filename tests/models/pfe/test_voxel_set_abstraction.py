"""Voxel set abstraction: columns by hand, names of checkpoints, scenes without points, and gradients."""

import json

import pytest
import torch

from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.pfe.voxel_set_abstraction import VoxelSetAbstraction
from pcdet.models.registry import PFES
from pcdet.models.voxel_centres import voxel_centres
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import construct

INFO = DatasetInfo(
    ("Car",), ("x", "y", "z", "intensity"), (0.0, -4.0, -2.0, 8.0, 4.0, 2.0), (0.1, 0.1, 0.2), (80, 80, 20), 5
)
CHANNELS = {"points": 4, "spatial_features": 6, "x_conv3": 4, "x_conv4": 6}
STACK = {"MLPS": [[5], [7]], "POOL_RADIUS": [0.8, 1.6], "NSAMPLE": [4, 8]}
GROUP = {"NUM_LOCAL_VOXEL": [2, 2, 2], "MAX_NEIGHBOR_DISTANCE": 0.8, "NEIGHBOR_NSAMPLE": -1, "POST_MLPS": [6]}
VECTOR = {
    "NAME": "VectorPoolAggregationModuleMSG",
    "NUM_GROUPS": 1,
    "LOCAL_AGGREGATION_TYPE": "local_interpolation",
    "NUM_REDUCED_CHANNELS": 1,
    "NUM_CHANNELS_OF_LOCAL_AGGREGATION": 3,
    "MSG_POST_MLPS": [5],
    "GROUP_CFG_0": GROUP,
    "FILTER_NEIGHBOR_WITH_ROI": True,
    "RADIUS_OF_NEIGHBOR_WITH_ROI": 1.0,
}
SPC = {"SAMPLE_METHOD": "SPC", "SPC_SAMPLING": {"NUM_SECTORS": 2, "SAMPLE_RADIUS_WITH_ROI": 1.0}}


def encoder(layers=STACK, sources=("bev", "x_conv3", "x_conv4", "raw_points"), **changes) -> VoxelSetAbstraction:
    torch.manual_seed(0)
    blocks = {"x_conv3": {"DOWNSAMPLE_FACTOR": 4}, "x_conv4": {"DOWNSAMPLE_FACTOR": 8}, "raw_points": {}}
    options = {
        "NUM_KEYPOINTS": 12,
        "NUM_OUTPUT_FEATURES": 9,
        "FEATURES_SOURCE": list(sources),
        "SA_LAYER": {name: block | layers for name, block in blocks.items()},
    }
    return construct(VoxelSetAbstraction, options | changes, INFO, CHANNELS)


def batch_of(counts, seed=0):
    """Random points, voxels of two levels, a map and two proposals a scene."""
    draw = torch.Generator().manual_seed(seed)
    scene = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    low, high = torch.tensor(INFO.point_cloud_range).view(2, 3)
    xyz = low + torch.rand(len(scene), 3, generator=draw) * (high - low)
    points = torch.cat([scene[:, None].float(), xyz, torch.rand(len(scene), 1, generator=draw)], dim=1)
    levels = {}
    for name, stride in (("x_conv3", 4), ("x_conv4", 8)):
        cells = ((xyz - low) / torch.tensor(INFO.voxel_size) / stride).long().flip(1)
        coords = torch.cat([scene[:, None], cells], dim=1).unique(dim=0)
        rows = torch.randn(len(coords), CHANNELS[name], generator=draw).requires_grad_()
        levels[name] = SparseConvTensor(rows, coords.int(), (20 // stride + 1, 80 // stride, 80 // stride), len(counts))
    rois = torch.rand(len(counts), 2, 7, generator=draw) * torch.tensor([8.0, 4, 1, 4, 2, 2, 3])
    bev = torch.randn(len(counts), 6, 10, 10, generator=draw).requires_grad_()
    return {
        "points": points,
        "batch_size": len(counts),
        "spatial_features": bev,
        "spatial_features_stride": 8,
        "multi_scale_3d_features": levels,
        "rois": rois,
    }


def test_it_is_registered():
    assert PFES["VoxelSetAbstraction"] is VoxelSetAbstraction


def test_columns_are_map_points_and_voxels():
    pfe, batch = encoder().eval(), batch_of([60, 40])
    out = pfe(**batch)
    assert out.point_coords.shape == (24, 4) and out.point_features.shape == (24, 9)
    assert out.point_coords[:, 0].tolist() == [0.0] * 12 + [1.0] * 12
    assert torch.equal(out.point_coords[0], batch["points"][0, :4])  # sampling begins with the first point
    assert torch.equal(out.point_coords[12], batch["points"][60, :4])
    before = out.point_features_before_fusion
    assert before.shape[1] == pfe.out_channels["point_features_before_fusion"] == 6 + 3 * 12
    counts, centres = torch.tensor([60, 40]), out.point_coords[:, 1:].contiguous()
    xyz, intensity = batch["points"][:, 1:4].contiguous(), batch["points"][:, 4:]
    by_hand = pfe.SA_rawpoints(xyz, counts, centres, torch.tensor([12, 12]), intensity)
    torch.testing.assert_close(before[:, 6:18], by_hand)
    level = batch["multi_scale_3d_features"]["x_conv4"]
    cells = torch.bincount(level.indices[:, 0].long(), minlength=2)
    by_hand = pfe.SA_layers[1](
        voxel_centres(level.indices[:, 1:], INFO, 8), cells, centres, torch.tensor([12, 12]), level.features
    )
    torch.testing.assert_close(before[:, 30:], by_hand)
    torch.testing.assert_close(out.point_features, pfe.vsa_point_feature_fusion(before))


def test_the_map_is_read_at_the_keypoints():
    """A map that holds its own column and row: a keypoint reads its place in cells of 0.8 m."""
    pfe, batch = encoder(sources=["bev"]).eval(), batch_of([30])
    place = torch.arange(10.0)
    batch["spatial_features"] = torch.stack([place.expand(10, 10), place[:, None].expand(10, 10)] * 3)[None]
    out = pfe(**batch)
    where = (out.point_coords[:, 1:3] - torch.tensor([0.0, -4.0])) / 0.8
    inside = (where < 9).all(dim=1)
    assert inside.sum() > 5
    torch.testing.assert_close(out.point_features_before_fusion[inside, :2], where[inside])


def test_voxel_centres_by_hand():
    coords = torch.tensor([[0, 0, 0], [2, 1, 3]])  # z, y, x
    expected = torch.tensor([[0.05, -3.95, -1.9], [0.35, -3.85, -1.5]])
    torch.testing.assert_close(voxel_centres(coords, INFO), expected)
    torch.testing.assert_close(voxel_centres(coords[:1], INFO, 4), torch.tensor([[0.2, -3.8, -1.6]]))


def test_keypoints_may_be_centres_of_voxels():
    pfe, batch = encoder(sources=["bev"], POINT_SOURCE="voxel_centers").eval(), batch_of([30])
    coords = torch.tensor([[0, 1, 2, 3], [0, 5, 6, 7]])
    out = pfe(**batch, voxel_coords=coords)
    centres = voxel_centres(coords[:, 1:], INFO)
    torch.testing.assert_close(out.point_coords[:, 1:], centres.repeat(6, 1))


def test_a_batch_of_two_equals_two_of_one():
    pfe, batch = encoder(VECTOR, **SPC).eval(), batch_of([60, 40])
    both = pfe(**batch)
    levels = batch["multi_scale_3d_features"]
    start = 0
    for scene in range(2):
        own = {}
        for name, level in levels.items():
            keep = level.indices[:, 0] == scene
            coords = level.indices[keep].clone()
            coords[:, 0] = 0
            own[name] = SparseConvTensor(level.features[keep], coords, level.spatial_shape, 1)
        points = batch["points"][batch["points"][:, 0] == scene].clone()
        points[:, 0] = 0
        single = pfe(
            points=points,
            batch_size=1,
            spatial_features=batch["spatial_features"][scene : scene + 1],
            spatial_features_stride=8,
            multi_scale_3d_features=own,
            rois=batch["rois"][scene : scene + 1],
        )
        rows = slice(start, start + len(single.point_coords))
        torch.testing.assert_close(both.point_coords[rows, 1:], single.point_coords[:, 1:])
        torch.testing.assert_close(both.point_features[rows], single.point_features)
        start = rows.stop
    assert start == len(both.point_coords)


def test_neighbours_far_from_proposals_do_not_count():
    """Whatever the points and voxels hold that the filter drops, the keypoints' features stay the same."""
    pfe, batch = encoder(VECTOR, sources=["x_conv3", "raw_points"], **SPC).eval(), batch_of([80])
    batch["rois"] = torch.tensor([[[2.0, 0, 0, 1, 1, 1, 0]]])
    before = pfe(**batch).point_features
    far = (batch["points"][:, 1:4] - batch["rois"][0, 0, :3]).norm(dim=1) > 3**0.5 / 2 + 1.01
    assert 0 < far.sum() < 80
    batch["points"][far, 4] += 10
    level = batch["multi_scale_3d_features"]["x_conv3"]
    gone = (voxel_centres(level.indices[:, 1:], INFO, 4) - batch["rois"][0, 0, :3]).norm(dim=1) > 3**0.5 / 2 + 1.01
    batch["multi_scale_3d_features"]["x_conv3"] = level.replace_feature(level.features + 10 * gone.unsqueeze(1))
    torch.testing.assert_close(pfe(**batch).point_features, before)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layers, changes", [(STACK, {}), (VECTOR, SPC)])
@pytest.mark.parametrize("counts", [[20, 0], [0, 3], [0, 0], [1]])
def test_scenes_without_points(layers, changes, training, counts):
    pfe, batch = encoder(layers, **changes).train(training), batch_of(counts)
    out = pfe(**batch)
    found = torch.bincount(out.point_coords[:, 0].long(), minlength=len(counts))
    assert [bool(n) for n in found] == [bool(n) for n in counts]
    out.point_features.sum().backward()
    assert out.point_features.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in pfe.parameters())


def test_scenes_without_proposals():
    pfe, batch = encoder(VECTOR, **SPC).train(), batch_of([20, 5])
    out = pfe(**batch | {"rois": torch.zeros(2, 0, 7)})
    assert len(out.point_coords) == 2 and out.point_features.isfinite().all()


@pytest.mark.parametrize("layers, changes", [(STACK, {}), (VECTOR, SPC)])
def test_everything_is_trained(layers, changes):
    pfe, batch = encoder(layers, **changes).train(), batch_of([60, 40])
    out = pfe(**batch)
    (out.point_features * torch.randn_like(out.point_features)).sum().backward()
    sources = [batch["spatial_features"], *(x.features for x in batch["multi_scale_3d_features"].values())]
    for tensor in (*sources, *pfe.parameters()):
        assert tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("model", ["kitti_models/pv_rcnn", "kitti_models/pv_rcnn_plusplus_reproduced_by_community"])
def test_names_and_shapes_are_those_of_published_checkpoints(model, shared):
    facts = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())["state_dicts"]
    block = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())[f"{model}.yaml"]["MODEL"]["PFE"]
    channels = {"points": 4, "spatial_features": 256, "x_conv1": 16, "x_conv2": 32, "x_conv3": 64, "x_conv4": 64}
    with torch.device("meta"):
        pfe = construct(VoxelSetAbstraction, block, INFO, channels)
    mine = {name: list(value.shape) for name, value in pfe.state_dict().items()}
    expected = {k.removeprefix("pfe."): v for k, v in facts[f"{model}.yaml"].items() if k.startswith("pfe.")}
    assert mine == expected and list(mine) == list(expected)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"FEATURES_SOURCE": ["x_conv2"]}, "names x_conv2, but SA_LAYER has no block"),
        ({"FEATURES_SOURCE": ["x_conv3"], "SA_LAYER": {"x_conv3": STACK}}, "x_conv3 needs DOWNSAMPLE_FACTOR"),
        ({"SAMPLE_METHOD": "SPC"}, "SPC needs SPC_SAMPLING with NUM_SECTORS, SAMPLE_RADIUS_WITH_ROI"),
        (
            {
                "FEATURES_SOURCE": ["x_conv3"],
                "SA_LAYER": {"x_conv3": STACK | {"DOWNSAMPLE_FACTOR": 4, "INPUT_CHANNELS": 5}},
            },
            "INPUT_CHANNELS is 5, but the backbone gives 4",
        ),
        (
            {"FEATURES_SOURCE": ["raw_points"], "SA_LAYER": {"raw_points": STACK | {"FILTER_NEIGHBOR_WITH_ROI": True}}},
            "raw_points needs RADIUS_OF_NEIGHBOR_WITH_ROI",
        ),
    ],
)
def test_options_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        encoder(**changes)


@pytest.mark.parametrize("layers, changes, who", [(STACK, SPC, "SAMPLE_METHOD SPC"), (VECTOR, {}, "FILTER_NEIGHBOR")])
def test_proposals_that_are_missing(layers, changes, who):
    batch = batch_of([20])
    del batch["rois"]
    with pytest.raises(ValueError, match=f"{who}.* needs proposals"):
        encoder(layers, **changes)(**batch)


@pytest.mark.parametrize("layers, changes", [(STACK, {}), (VECTOR, SPC)])
def test_half_precision_stays_near_and_leaves_the_coordinates(layers, changes):
    pfe, batch = encoder(layers, **changes).eval(), batch_of([60, 40])
    full = pfe(**batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = pfe(**batch)
    assert torch.equal(half.point_coords, full.point_coords)
    torch.testing.assert_close(half.point_features.float(), full.point_features, rtol=0.1, atol=0.1)
