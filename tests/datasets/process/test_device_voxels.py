"""DEVICE: True of transform_points_to_voxels: the model lays the points into the same voxels."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from pcdet.config import load_config
from pcdet.datasets import build_dataset
from pcdet.models.build import build_model
from pcdet.models.voxelization import with_voxels

KEYS = ("voxels", "voxel_coords", "voxel_num_points")
CLASSES = ["Car", "Pedestrian", "Cyclist"]


@pytest.fixture
def both(data_settings, small_kitti):
    """The training or test set as processed by the loader, and the same with DEVICE: True."""

    def make(training: bool, most: int = 16000):
        block = data_settings["DATA_PROCESSOR"][-1]
        block["MAX_NUMBER_OF_VOXELS"] = {"train": most, "test": most + 1}
        on_device = copy.deepcopy(data_settings)
        on_device["DATA_PROCESSOR"][-1]["DEVICE"] = True
        return [
            build_dataset(settings, CLASSES, training=training, root=small_kitti)
            for settings in (data_settings, on_device)
        ]

    return make


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("most", [16000, 700])
def test_the_same_voxels(both, training, most):
    on_host, on_device = both(training, most)
    items = [0, 1, 0]
    wanted = on_host.collate([on_host[i] for i in items])
    batch = on_device.collate([on_device[i] for i in items])
    assert not set(KEYS) & set(batch) and torch.equal(batch["points"], wanted["points"])
    assert on_device.info.device_voxels == (most, most + 1) and on_host.info.device_voxels is None
    found = with_voxels(batch, on_device.info, training)
    for key in KEYS:
        assert found[key].dtype == wanted[key].dtype and torch.equal(found[key], wanted[key]), key
    if most == 700:
        assert torch.bincount(found["voxel_coords"][:, 0].long()).tolist() == [700 if training else 701] * 3


def test_a_scene_without_points_keeps_its_place(both):
    _, dataset = both(False)
    batch = dataset.collate([dataset[0], {**dataset[1], "points": np.zeros((0, 4), np.float32)}, dataset[0]])
    found = with_voxels(batch, dataset.info, False)
    assert found["voxel_coords"][:, 0].unique().tolist() == [0, 2]


def test_losses_gradients_and_detections_are_the_same(both, root):
    settings = load_config(root / "cfgs" / "kitti_models" / "pointpillar.yaml").settings
    results = []
    for dataset in both(True):
        torch.manual_seed(0)
        model = build_model(settings.MODEL, dataset.info)
        losses = torch.stack(list(model(dataset.collate([dataset[0], dataset[1]])).losses.values()))
        losses.sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        with torch.no_grad():
            found = model.eval()(dataset.collate([dataset[0]]))[0]
        results.append((losses.detach(), gradient, found.boxes, found.scores))
    for host, device in zip(*results, strict=True):
        torch.testing.assert_close(device, host, rtol=0, atol=0)


def test_it_must_stand_last(data_settings, small_kitti):
    data_settings["DATA_PROCESSOR"][-1]["DEVICE"] = True
    data_settings["DATA_PROCESSOR"].append({"NAME": "shuffle_points", "SHUFFLE_ENABLED": {"train": True}})
    with pytest.raises(ValueError, match="with DEVICE transform_points_to_voxels .* must stand last"):
        build_dataset(data_settings, CLASSES, training=True, root=small_kitti)


def test_a_model_keeps_no_voxels_of_its_own_otherwise(both):
    on_host, _ = both(True)
    assert replace(on_host.info, device_voxels=None) == on_host.info
