import json

import pytest
import torch
from torch import nn

from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.roi_heads.voxelrcnn_head import VoxelRCNNHead
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car",), ("x", "y", "z"), (0.0, -4.0, -2.0, 8.0, 4.0, 2.0), (0.1, 0.1, 0.2), (80, 80, 20), 5)
CHANNELS = {"x_conv2": 3, "x_conv3": 5}
STRIDES = {"x_conv1": 1, "x_conv2": 2, "x_conv3": 4}
GT = torch.tensor(
    [[[4.0, 0, 0, 2, 1, 1, 0.3, 1], [6, 2, 0, 2, 1, 1, 2.0, 1]], [[3, -1, 0, 2, 1, 1, 1.0, 1], [0.0] * 8]]
)
RANGE = {"QUERY_RANGES": [[4, 4, 4]], "NSAMPLE": [8], "POOL_METHOD": "max_pool"}
POOL = {
    "FEATURES_SOURCE": ["x_conv2", "x_conv3"],
    "PRE_MLP": True,
    "GRID_SIZE": 3,
    "POOL_LAYERS": {
        "x_conv2": {"MLPS": [[6, 4]], "POOL_RADIUS": [0.4], **RANGE},
        "x_conv3": {"MLPS": [[6, 4]], "POOL_RADIUS": [0.8], **RANGE},
    },
}


@pytest.fixture
def make_head(roi_options):
    def make(info=INFO, channels=None, **changes) -> VoxelRCNNHead:
        torch.manual_seed(0)
        options = {"shared_fc": [8, 8], "cls_fc": [8, 8], "reg_fc": [8, 8], "dp_ratio": 0.3, "roi_grid_pool": POOL}
        return VoxelRCNNHead(info, channels or CHANNELS, **roi_options(), **(options | changes))

    return make


def features(scenes=2, share=6, seed=0):
    """Voxels in every ``share``-th cell of two levels; none at all where it is 0."""
    draw = torch.Generator().manual_seed(seed)
    levels = {}
    for name, stride in list(STRIDES.items())[1:]:
        shape = (20 // stride + 1, 80 // stride, 80 // stride)
        cells = torch.rand(scenes, *shape, generator=draw) < (1 / share if share else -1)
        indices = cells.nonzero()
        rows = torch.randn(len(indices), CHANNELS[name], generator=draw)
        levels[name] = SparseConvTensor(rows.requires_grad_(), indices.int(), shape, scenes)
    return levels


def test_names_and_shapes_are_those_of_published_checkpoints(make_head, shared):
    facts = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())["state_dicts"]
    entries = facts["kitti_models/voxel_rcnn_car.yaml"]
    expected = {k.removeprefix("roi_head."): v for k, v in entries.items() if k.startswith("roi_head.")}
    block = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())["kitti_models/voxel_rcnn_car.yaml"]
    block = block["MODEL"]["ROI_HEAD"]
    with torch.device("meta"):
        head = make_head(
            channels={"x_conv2": 32, "x_conv3": 64, "x_conv4": 64},
            roi_grid_pool=block["ROI_GRID_POOL"],
            **{key: block[key.upper()] for key in ("shared_fc", "cls_fc", "reg_fc", "dp_ratio")},
        )
    state = {k: list(v.shape) for k, v in head.state_dict().items()}
    assert state == expected
    assert list(state) == list(expected)


def test_cells_by_hand(make_head):
    """The last point is 80 cells of 0.1 m from the corner, but 0.1 in float32 is a little more."""
    points = torch.tensor([[0.0, -4.0, -2.0], [0.25, -3.95, -1.5], [-0.05, -4.25, -2.1], [8.0, 4.0, 2.0]])
    wanted = [[0, 0, 0], [2, 0, 2], [-1, -3, -1], [19, 79, 79]]  # z, y, x
    assert make_head()._cells(points).tolist() == wanted
    astray = make_head()._cells(torch.tensor([[float("inf"), 1e30, float("nan")]]))
    assert astray.isfinite().all()
    assert (astray.abs() >= 1e6).all()


def test_a_voxel_is_seen_by_the_grid_points_around_it(make_head):
    """One voxel in the middle of a proposal: moved far away, the proposal sees nothing, and other numbers come out."""
    head = make_head().eval()
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
    levels = {
        name: SparseConvTensor(torch.full((1, CHANNELS[name]), 5.0), torch.tensor([place]).int(), (11, 40, 40), 1)
        for name, place in {"x_conv2": [0, 5, 20, 20], "x_conv3": [0, 2, 10, 10]}.items()
    }
    rois = torch.tensor([[[4.1, 0.1, 0.2, 1, 1, 1, 0.5], [1.0, -3, 0, 1, 1, 1, 0], [1.0, -3, 0, 1, 1, 1, 2.0]]])
    near, far, turned = head(rois, levels, STRIDES).rcnn_reg
    assert (near - far).abs().max() > 1e-3
    assert torch.equal(far, turned)


def test_a_batch_of_two_equals_two_of_one(make_head, near_proposals):
    head = make_head().eval()
    levels, rois = features(), near_proposals(GT, 3).rois
    together = head(rois, levels, STRIDES)
    for scene in range(2):
        alone = {}
        for name, level in levels.items():
            own = level.indices[:, 0] == scene
            indices = level.indices[own] * torch.tensor([0, 1, 1, 1], dtype=torch.int32)
            alone[name] = SparseConvTensor(level.features[own], indices, level.spatial_shape, 1)
        found = head(rois[scene : scene + 1], alone, STRIDES)
        for mine, both in zip(found, together, strict=True):
            torch.testing.assert_close(mine, both.view(2, 3, -1)[scene])


@pytest.mark.parametrize("share", [6, 0])
@pytest.mark.parametrize("boxes", [2, 0])
def test_every_parameter_gets_a_finite_gradient(make_head, near_proposals, share, boxes):
    head, levels, gt = make_head().train(), features(share=share), GT[:, :boxes]
    targets = head.assign(near_proposals(GT, 12), gt, torch.Generator().manual_seed(0))
    losses = head.loss(head(targets.rois, levels, STRIDES), targets)
    assert losses.keys() == {"rcnn_loss_cls", "rcnn_loss_reg", "rcnn_loss_corner"}
    if not boxes:
        assert losses["rcnn_loss_reg"].item() == losses["rcnn_loss_corner"].item() == 0
    sum(losses.values()).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    if share and boxes:
        assert all(level.features.grad.abs().sum() > 0 for level in levels.values())


@pytest.mark.parametrize("rows", [0, 1])
def test_few_proposals(make_head, rows):
    head = make_head().eval()
    preds = head(torch.zeros(2, rows, 7), features(), STRIDES)
    assert preds.rcnn_cls.shape == (2 * rows, 1)
    assert preds.rcnn_reg.shape == (2 * rows, 7)
    assert all(p.isfinite().all() for p in preds)


def test_wrong_settings_are_named(make_head):
    pool = POOL | {"FEATURES_SOURCE": ["x_conv2", "x_conv4"]}
    with pytest.raises(ValueError, match=r"FEATURES_SOURCE names x_conv4, POOL_LAYERS has only \['x_conv2'"):
        make_head(roi_grid_pool=pool)
