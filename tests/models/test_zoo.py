"""Every detector of the YAML files trains on simulated scenes, and survives bad ones."""

import copy

import numpy as np
import pytest
import torch
from zoo import NAMES, batch_of, simulated_scene, small_dataset, small_model

from pcdet.datasets.clouds import read_cloud
from pcdet.models.candidates import Proposals

STEPS = 10


def losses_of(model, batch):
    output = model(batch)
    return torch.stack(list(output.losses.values())).sum()


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_falls_and_every_parameter_has_a_gradient(name):
    model = copy.deepcopy(small_model(name)).train()
    batch = batch_of(small_dataset(name, [simulated_scene(0), simulated_scene(1)]))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = losses_of(model, batch)
        loss.backward()
        lost = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert lost == []
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < 0.95 * losses[0]


def empty_scene():
    scene = simulated_scene(0)
    return scene.with_(points=scene.points[:0])


def one_point():
    scene = simulated_scene(0)
    return scene.with_(points=np.array([[6.0, 0.5, -1.0, 0.3]], dtype=np.float32))


def without_boxes():
    scene = simulated_scene(0)
    return scene.with_(gt_boxes=scene.gt_boxes[:0], gt_names=scene.gt_names[:0])


BAD = {
    "no points": lambda: [empty_scene(), empty_scene()],
    "one point": lambda: [one_point(), one_point()],
    "nothing in one scene": lambda: [empty_scene(), simulated_scene(0)],
    "nothing in the last scene": lambda: [simulated_scene(0), empty_scene()],
    "no boxes": lambda: [without_boxes(), without_boxes()],
    "no points and no boxes": lambda: [without_boxes().with_(points=empty_scene().points)],
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", NAMES)
def test_bad_scenes_give_finite_results(name, case):
    check(small_model(name), name, batch_of(small_dataset(name, BAD[case]())))


def only_padding(module, inputs, found):
    return Proposals(
        torch.zeros_like(found.rois), torch.zeros_like(found.roi_scores), torch.ones_like(found.roi_labels)
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_proposals(name):
    """A second stage gets nothing to refine: all rows of its proposals are padding."""
    model = copy.deepcopy(small_model(name))
    if not model.two_stage:
        return
    model.roi_head.proposal_layer.register_forward_hook(only_padding)
    batch = batch_of(small_dataset(name, [simulated_scene(0), simulated_scene(1)]))
    check(model, name, batch)
    with torch.no_grad():
        assert [len(scene) for scene in model.eval()(batch)] == [0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_more_voxels_than_the_limit(name):
    dataset = small_dataset(name, [simulated_scene(0)], MAX_NUMBER_OF_VOXELS={"train": 7, "test": 7})
    batch = batch_of(dataset)
    assert len(batch.get("voxels", [])) in (0, 7)
    check(small_model(name), name, batch)


@pytest.mark.parametrize("name", NAMES)
def test_points_that_are_no_numbers(name, tmp_path):
    """They are left out when the file is read."""
    scene = simulated_scene(0)
    points = scene.points.copy()
    points[::3, 0], points[1::3, 3] = np.nan, np.inf
    points.astype(np.float32).tofile(tmp_path / "cloud.bin")
    read, dropped = read_cloud(tmp_path / "cloud.bin")
    assert dropped > 0
    check(small_model(name), name, batch_of(small_dataset(name, [scene.with_(points=read)])))


def check(model, name, batch):
    """Finite losses and gradients in training, finite or no boxes in evaluation."""
    model.train()
    model.zero_grad()
    loss = losses_of(model, batch)
    assert loss.isfinite()
    loss.backward()
    lost = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert lost == []
    model.eval()
    with torch.no_grad():
        for found in model(batch):
            assert found.boxes.isfinite().all() and found.scores.isfinite().all()
            assert len(found.boxes) == len(found.scores) == len(found.labels)
    assert all(value.isfinite().all() for value in model.state_dict().values())
