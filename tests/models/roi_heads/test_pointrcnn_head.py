import json
import math

import pytest
import torch
from torch import nn

from pcdet.models.candidates import Proposals
from pcdet.models.roi_heads.pointrcnn_head import PointRCNNHead
from pcdet.ops.roipoint_pool import roipoint_pool3d
from pcdet.structures.boxes import rotate_z
from pcdet.structures.dataset_info import DatasetInfo

INFO = DatasetInfo(("Car", "Cyclist"), ("x", "y", "z"), (0.0, -8.0, -2.0, 16.0, 8.0, 2.0))
POOL = {"POOL_EXTRA_WIDTH": [0.2, 0.0, 0.0], "NUM_SAMPLED_POINTS": 16, "DEPTH_NORMALIZER": 10.0}
LEVELS = {"NPOINTS": [8, 4, -1], "RADIUS": [0.6, 1.2, 100], "NSAMPLE": [4, 4, 4], "MLPS": [[7, 6], [8], [9]]}
WIDTH = 5  # of point_features


@pytest.fixture
def make_head(roi_options):
    def make(**changes) -> PointRCNNHead:
        torch.manual_seed(0)
        options = {"roi_point_pool": POOL, "xyz_up_layer": [4, WIDTH], "sa_config": LEVELS}
        options |= {"cls_fc": [6, 6], "reg_fc": [6, 6]}
        width = changes.pop("width", WIDTH)
        return PointRCNNHead(INFO, {"point_features": width}, **roi_options(), **options | changes)

    return make


def scene_points(*counts: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Coordinates, features and scores of points in a box of 8 x 4 x 1.5 m around (6, 0, 0)."""
    draw = torch.Generator().manual_seed(seed)
    n = sum(counts)
    xyz = (torch.rand(n, 3, generator=draw) - 0.5) * torch.tensor([8, 4, 1.5]) + torch.tensor([6.0, 0, 0])
    scene = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).float()
    coords = torch.cat([scene[:, None], xyz], dim=1)
    return coords, torch.randn(n, WIDTH, generator=draw), torch.rand(n, generator=draw)


ROIS = torch.tensor(
    [
        [6.0, 0, 0, 4, 2, 1.5, 0.4],  # many points
        [4.5, 1, 0, 0.9, 0.9, 1.5, 2.0],  # few
        [60.0, 1, 0, 2, 2, 2, 0.0],  # none
        [0.0, 0, 0, 0, 0, 0, 0],  # padding
        [7.0, -1, 0, 1.6, 0.8, 1.5, -1.0],
    ]
)


def two_scenes() -> torch.Tensor:
    return torch.stack([ROIS, ROIS.flip(0) + torch.tensor([0.2, 0.1, 0, 0, 0, 0, 0.3])])  # (2, 5, 7)


def furthest(cloud, count):
    chosen = [0]
    for _ in range(count - 1):
        chosen.append(int((cloud[:, None] - cloud[chosen]).square().sum(dim=2).amin(dim=1).argmax()))
    return torch.tensor(chosen)


def rows_through(layers, rows):
    """As torch's own layers: every row counts once."""
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            rows = nn.functional.linear(rows, layer.weight.flatten(1), layer.bias)
        elif isinstance(layer, nn.BatchNorm1d):
            mean, var = (
                (rows.mean(0), rows.var(0, correction=0)) if layer.training else (layer.running_mean, layer.running_var)
            )
            rows = (rows - mean) / (var + layer.eps).sqrt() * layer.weight + layer.bias
        else:
            rows = rows.relu()
    return rows


def written_out(head, rois, coords, features, scores):
    """The head from equally many rows for every proposal, as the paper has it: repeated points and all."""
    scenes, count = rois.shape[:2]
    depth = coords[:, 1:4].norm(dim=1) / POOL["DEPTH_NORMALIZER"] - 0.5
    columns = torch.cat([scores[:, None], depth[:, None], features], dim=1).view(scenes, -1, 2 + WIDTH)
    xyz = coords[:, 1:4].reshape(scenes, -1, 3)
    pooled, empty = roipoint_pool3d(xyz, columns, rois, POOL["POOL_EXTRA_WIDTH"], POOL["NUM_SAMPLED_POINTS"])
    boxes = rois.view(-1, 7)
    clouds = []
    for i, rows in enumerate(pooled.flatten(0, 1)):
        own = rotate_z(rows[:, :3] - boxes[i, :3], -boxes[i, 6].item())
        clouds.append(torch.cat([own, rows[:, 3:]], dim=1) * (~empty.flatten()[i]))
    rows = torch.stack(clouds)  # (B * R, S, 5 + C)
    up = rows_through(head.xyz_up_layer, rows[..., :5].flatten(0, 1))
    merged = rows_through(head.merge_down_layer, torch.cat([up, rows[..., 5:].flatten(0, 1)], dim=1))
    xyz, values = rows[..., :3], merged.view(*rows.shape[:2], WIDTH)
    for level, wanted, radius in zip(head.SA_modules, LEVELS["NPOINTS"][:-1], LEVELS["RADIUS"], strict=False):
        centres, groups = [], []
        for cloud, value in zip(xyz, values, strict=True):
            chosen = cloud[furthest(cloud, wanted)]
            centres.append(chosen)
            for centre in chosen:
                near = ((cloud - centre).square().sum(dim=1) < radius**2).nonzero()[:, 0][:4]
                near = torch.cat([near, near[:1].expand(4 - len(near))])
                groups.append(torch.cat([cloud[near] - centre, value[near]], dim=1))
        out = rows_through(level.mlps[0], torch.cat(groups)).view(len(rows), wanted, 4, -1)
        xyz, values = torch.stack(centres), out.amax(dim=2)
    whole = torch.cat([xyz, values], dim=2)
    out = rows_through(head.SA_modules[-1].mlps[0], whole.flatten(0, 1)).view(*whole.shape[:2], -1).amax(dim=1)
    return head.cls_layers(out), head.reg_layers(out)


@pytest.mark.parametrize("use_bn", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_equals_the_network_written_out(make_head, training, use_bn):
    """Repeated points, repeated centres and empty proposals count in the statistics as often as they occur."""
    head = make_head(use_bn=use_bn).train(training)
    head.reg_layers[-1].weight.data.mul_(100)
    inputs = scene_points(150, 150)
    rois = two_scenes()
    preds = head(rois, *inputs)
    wanted = written_out(head, rois, *inputs)
    pull = [torch.randn_like(part) for part in wanted]
    torch.testing.assert_close(tuple(preds), wanted, rtol=1e-3, atol=1e-4)
    loss = [sum((part * p).sum() for part, p in zip(parts, pull, strict=True)) for parts in (preds, wanted)]
    grads = [torch.autograd.grad(value, list(head.parameters())) for value in loss]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3 * theirs.abs().max().item() + 1e-6)


def test_names_shapes_and_order_are_those_of_published_checkpoints(roi_options, shared):
    facts = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())["state_dicts"]
    config = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())["kitti_models/pointrcnn_iou.yaml"]
    entries = facts["kitti_models/pointrcnn_iou.yaml"]
    expected = {k.removeprefix("roi_head."): v for k, v in entries.items() if k.startswith("roi_head.")}
    block = {key.lower(): value for key, value in config["MODEL"]["ROI_HEAD"].items() if key != "NAME"}
    with torch.device("meta"):
        head = PointRCNNHead(INFO, {"point_features": 128}, **block)
    state = {name: list(value.shape) for name, value in head.state_dict().items()}
    assert state == expected
    assert list(state) == list(expected)


def test_pooled_points_by_hand(make_head):
    """A box at (3, 1) that faces +y: the point 1 m further along y lies 1 m ahead."""
    head = make_head()
    coords = torch.tensor([[0.0, 3, 2, 0.5], [0, 9, 9, 0]])
    features, scores = torch.arange(10.0).view(2, 5), torch.tensor([0.25, 0.5])
    rois = torch.tensor([[[3.0, 1, 0, 4, 2, 2, math.pi / 2], [30, 0, 0, 1, 1, 1, 0]]])
    rows, counts = head._pool(rois, coords, features, scores)
    depth = (9 + 4 + 0.25) ** 0.5 / 10 - 0.5
    assert counts.tolist() == [1, 1]
    torch.testing.assert_close(rows[0], torch.tensor([1.0, 0, 0.5, 0.25, depth, 0, 1, 2, 3, 4]), atol=1e-6, rtol=1e-6)
    assert not rows[1].any()


def test_points_beyond_the_wanted_number_are_left_out(make_head):
    coords, features, scores = scene_points(400)
    everything = torch.tensor([[[6.0, 0, 0, 20, 20, 9, 0]]])
    rows, counts = make_head()._pool(everything, coords, features, scores)
    assert counts.tolist() == [16]
    torch.testing.assert_close(rows[:, 5:], features[:16])


def test_turning_the_scene_about_the_sensor_changes_nothing(make_head):
    head = make_head().eval()
    coords, features, scores = scene_points(200)
    turned = torch.cat([coords[:, :1], rotate_z(coords[:, 1:], 0.7)], dim=1)
    boxes = torch.cat([rotate_z(ROIS, 0.7)[:, :6], ROIS[:, 6:] + 0.7], dim=1)
    before, after = head(ROIS[None], coords, features, scores), head(boxes[None], turned, features, scores)
    torch.testing.assert_close(tuple(after), tuple(before), rtol=1e-3, atol=1e-4)


def test_no_gradient_reaches_the_points(make_head):
    coords, features, scores = scene_points(50)
    features.requires_grad_(), scores.requires_grad_()
    preds = make_head()(ROIS[None], coords, features, scores)
    preds.rcnn_reg.sum().backward()
    assert features.grad is None and scores.grad is None


def test_every_parameter_learns(make_head):
    head = make_head(use_bn=True)
    preds = head(two_scenes(), *scene_points(200, 200))
    (preds.rcnn_cls.square().sum() + preds.rcnn_reg.square().sum()).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in head.parameters())


@pytest.mark.parametrize("counts", [(0, 0), (120, 0), (0, 120), (120, 30)])
def test_scenes_of_any_size(make_head, counts):
    """A scene's proposals are described as if it were alone."""
    head, rois = make_head(), two_scenes()
    coords, features, scores = scene_points(*counts)
    preds = head(rois, coords, features, scores)
    sum(part.sum() for part in preds).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())
    assert all(value.isfinite().all() for value in head.state_dict().values())
    head.eval()
    whole = head(rois, coords, features, scores).rcnn_cls.view(2, -1)
    for i in range(2):
        own = coords[:, 0] == i
        part = coords[own] * torch.tensor([0.0, 1, 1, 1])
        torch.testing.assert_close(whole[i], head(rois[i : i + 1], part, features[own], scores[own]).rcnn_cls[:, 0])


def test_no_proposals(make_head):
    for training in (True, False):
        preds = make_head().train(training)(torch.zeros(2, 0, 7), *scene_points(50, 50))
        assert preds.rcnn_cls.shape == (0, 1) and preds.rcnn_reg.shape == (0, 7)


def test_labels_between_the_thresholds_are_not_judged(make_head, roi_options):
    """CLS_SCORE_TYPE cls: an overlap between CLS_BG_THRESH and CLS_FG_THRESH has the label -1."""
    config = roi_options()["target_config"] | {"CLS_SCORE_TYPE": "cls", "CLS_FG_THRESH": 0.6, "CLS_BG_THRESH": 0.45}
    head = make_head()
    head.target_config = config
    gt = torch.tensor([[[6.0, 0, 0, 4, 2, 1.5, 0, 1]]])
    shift = torch.tensor([0.0, 0, 0, 4, 2, 1.5, 0])
    # Overlaps of boxes shifted by x along their 4 m: (4 - x) / (4 + x), that is 0.6 at 1 and 0.45 at 1.52.
    rois = shift + torch.tensor([[6.5, 0, 0, 0, 0, 0, 0], [7.25, 0, 0, 0, 0, 0, 0], [9.0, 0, 0, 0, 0, 0, 0]])
    proposals = Proposals(rois[None], torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.int64))
    targets = head.assign(proposals, gt, torch.Generator().manual_seed(0))
    by_place = {
        round(x.item(), 2): label.item()
        for x, label in zip(targets.rois[0, :, 0], targets.rcnn_cls_labels[0], strict=True)
    }
    assert by_place == {6.5: 1, 7.25: -1, 9.0: 0}
    logits = torch.zeros(8, 1, requires_grad=True)
    preds = head(targets.rois, *scene_points(60))._replace(rcnn_cls=logits)
    head.loss(preds, targets)["rcnn_loss_cls"].backward()
    assert torch.equal(logits.grad[:, 0] == 0, targets.rcnn_cls_labels[0] == -1)


def test_layers_begin_as_published(make_head):
    """Xavier everywhere, the box layer nearly at 0."""
    head = make_head(cls_fc=[400, 300])
    assert head.cls_layers[4].weight.std().item() == pytest.approx((2 / 700) ** 0.5, rel=0.02)
    assert not head.xyz_up_layer[0].bias.any()
    assert head.reg_layers[-1].weight.abs().max() < 0.01


def test_blocks_that_do_not_fit(make_head):
    with pytest.raises(ValueError, match="must end with the 7 channels"):
        make_head(width=7)
    with pytest.raises(ValueError, match="one entry a level"):
        make_head(sa_config=LEVELS | {"RADIUS": [1.0]})
    for npoints in ([8, 4, 2], [8, -1, -1]):
        with pytest.raises(ValueError, match="-1 on the last level"):
            make_head(sa_config=LEVELS | {"NPOINTS": npoints})
