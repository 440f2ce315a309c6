import copy

import pytest
import torch

from pcdet.models.build import build_model
from pcdet.structures.boxes import wrap_angle

NAMES = ["pointpillar", "second"]


@pytest.fixture
def detector(kitti_info, model_settings):
    def make(name, **changes):
        torch.manual_seed(0)
        return build_model(model_settings(name) | changes, kitti_info(name))

    return make


def loss_of(output):
    return sum(output.losses.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_finite_gradient(name, detector, kitti_info, made_batch):
    model = detector(name).train()
    output = model(made_batch(kitti_info(name), voxels=[200, 100], boxes=[3, 1]))
    assert set(output.losses) == {"rpn_loss_cls", "rpn_loss_loc", "rpn_loss_dir"}
    loss = loss_of(output)
    assert output.metrics["rpn_loss"].item() == pytest.approx(loss.item())
    assert output.metrics["loss_rpn"].item() == pytest.approx(loss.item())
    assert all(term.item() > 0 for term in output.losses.values())
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("voxels", [[100, 100, 0], [0, 100, 100], [0, 0]])
def test_c3_scenes_without_points(name, voxels, detector, kitti_info, made_batch):
    """Case C3: the last, the first, or every scene of a batch lies outside the range."""
    model = detector(name)
    batch = made_batch(kitti_info(name), voxels=voxels, boxes=[1] * len(voxels))
    loss = loss_of(model.train()(batch))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        found = model.eval()(batch)
    assert len(found) == len(voxels)
    assert all(torch.isfinite(scene.boxes).all() for scene in found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("boxes", [[0, 0], [2, 0]])
def test_e2_scenes_without_boxes_keep_every_parameter_in_the_graph(name, boxes, detector, kitti_info, made_batch):
    model = detector(name).train()
    output = model(made_batch(kitti_info(name), voxels=[100, 100], boxes=boxes))
    if not any(boxes):
        assert output.losses["rpn_loss_loc"].item() == 0
        assert output.losses["rpn_loss_dir"].item() == 0
    loss_of(output).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_two_equals_two_of_one(name, detector, kitti_info, made_batch):
    model = detector(name, POST_PROCESSING=permissive()).eval()
    both = made_batch(kitti_info(name), voxels=[150, 80], boxes=[0, 0])
    with torch.no_grad():
        together = model(both)
        for i, scene in enumerate(together):
            alone = model(only_scene(both, i))[0]
            assert len(alone) == len(scene) > 0
            torch.testing.assert_close(alone.boxes, scene.boxes, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(alone.scores, scene.scores, rtol=1e-4, atol=1e-5)


def test_the_order_of_voxels_and_of_points_does_not_matter(detector, kitti_info, made_batch):
    model = detector("pointpillar", POST_PROCESSING=permissive()).eval()
    batch = made_batch(kitti_info("pointpillar"), voxels=[150, 80], boxes=[0, 0])
    order = torch.randperm(230, generator=torch.Generator().manual_seed(1))
    shuffled = {key: value[order] if key.startswith("voxel") else value for key, value in batch.items()}
    for row, number in zip(shuffled["voxels"], shuffled["voxel_num_points"], strict=True):
        row[:number] = row[:number].flip(0)
    with torch.no_grad():
        for a, b in zip(model(batch), model(shuffled), strict=True):
            torch.testing.assert_close(a.boxes, b.boxes, rtol=1e-4, atol=1e-4)


def test_evaluation_leaves_batch_and_model_alone(detector, kitti_info, made_batch):
    model = detector("pointpillar").eval()
    batch = made_batch(kitti_info("pointpillar"), voxels=[50], boxes=[1])
    before, state = copy.deepcopy(batch), copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model(batch)
    assert batch.keys() == before.keys()
    for key, value in before.items():
        assert torch.equal(torch.as_tensor(batch[key]), torch.as_tensor(value)), key
    for key, value in state.items():
        assert torch.equal(model.state_dict()[key], value), key


def test_global_step_is_kept_in_checkpoints(detector):
    """The engine counts it: tests/train_utils/test_late_reading.py."""
    model = detector("pointpillar")
    assert model.state_dict()["global_step"].tolist() == [0]
    assert model.state_dict()["global_step"].dtype == torch.int64
    assert not any("anchors" in key or "code_weights" in key for key in model.state_dict())


def test_sampled_anchors_repeat_with_torchs_seed(detector, kitti_info, made_batch, model_settings):
    """Training with POS_FRACTION draws anchors: anew at each pass, the same ones from the same seed."""
    head = model_settings("pointpillar")["DENSE_HEAD"]
    head["TARGET_ASSIGNER_CONFIG"] |= {"POS_FRACTION": 0.5, "SAMPLE_SIZE": 64}
    model = detector("pointpillar", DENSE_HEAD=head).train()
    batch = made_batch(kitti_info("pointpillar"), voxels=[200], boxes=[3])
    losses = []
    for _ in range(2):
        torch.manual_seed(3)
        losses.append([loss_of(model(batch)).item() for _ in range(2)])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]


def test_one_scene_is_overfitted(detector, kitti_info, made_batch):
    """A car is found where its box is, after a few dozen steps on one scene."""
    info = kitti_info("pointpillar")
    model = detector("pointpillar").train()
    batch = made_batch(info, voxels=[300], boxes=[1])
    batch["gt_boxes"][0, 0] = torch.tensor([5.1, 0.3, -1.0, 3.9, 1.6, 1.56, 0.4, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(model(batch)).backward()
        optimizer.step()
    found = settled(model, batch)[0]
    assert found.labels[0] == 1 and found.scores[0] > 0.3
    torch.testing.assert_close(found.boxes[0, :6], batch["gt_boxes"][0, 0, :6], rtol=0, atol=0.3)
    assert wrap_angle(found.boxes[0, 6] - 0.4).abs() < 0.3


def settled(model, batch):
    """Detections with the running statistics of this batch (60 steps at momentum 0.01 have not reached them)."""
    for module in model.modules():
        if hasattr(module, "momentum"):
            module.momentum = 1.0
    with torch.no_grad():
        model(batch)
        return model.eval()(batch)


def permissive():
    """Detections even from an untrained model."""
    return {"SCORE_THRESH": 0.0, "NMS_CONFIG": {"NMS_THRESH": 0.1, "NMS_PRE_MAXSIZE": 500, "NMS_POST_MAXSIZE": 20}}


def only_scene(batch, scene):
    """The batch of one scene of a batch."""
    rows = batch["voxel_coords"][:, 0] == scene
    out = {key: batch[key][rows] for key in ("voxels", "voxel_num_points")}
    out["voxel_coords"] = batch["voxel_coords"][rows] * torch.tensor([0, 1, 1, 1], dtype=torch.int32)
    return out | {"batch_size": 1, "gt_boxes": batch["gt_boxes"][scene : scene + 1]}


def test_an_encoder_with_voxels_of_its_own_takes_the_place_of_the_data_sets(detector, kitti_info, made_batch):
    """As in OpenPCDet, dynamic encoders also train on data whose processors make voxels; they read the points."""
    batch = made_batch(kitti_info("second"), voxels=[200, 100], boxes=[2, 1])
    points = [row[:n] for row, n in zip(batch["voxels"], batch["voxel_num_points"], strict=True)]
    scenes = batch["voxel_coords"][:, :1].repeat_interleave(batch["voxel_num_points"], dim=0)
    batch["points"] = torch.cat([scenes.float(), torch.cat(points)], dim=1)
    wanted = detector("second").train()(batch)
    found = detector("second", VFE={"NAME": "DynMeanVFE"}).train()(batch | {"voxels": batch["voxels"] * torch.nan})
    for name, loss in wanted.losses.items():
        torch.testing.assert_close(found.losses[name], loss, rtol=1e-3, atol=1e-4)
