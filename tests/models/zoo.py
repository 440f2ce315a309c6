"""Every detector of the YAML files, made small, on simulated scenes of a few metres."""

import copy
import functools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pcdet.config import load_config
from pcdet.datasets.dataset import SceneDataset
from pcdet.datasets.synthetic.simulate import simulate_frame
from pcdet.models.build import build_model
from pcdet.structures.batch import Batch
from pcdet.structures.scene import Scene

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(
    str(path.relative_to(ROOT / "cfgs").with_suffix(""))
    for folder in ("kitti_models", "custom_models", "synthetic_models")
    for path in (ROOT / "cfgs" / folder).glob("*.yaml")
    if "overfit" not in path.stem and "pointnet" not in path.stem
)
# Horizontal size of a voxel in the YAML -> the one here and the range x1 y1 x2 y2; both with 128 x 128 cells.
GRIDS = {
    0.05: (0.1, [0, -6.4, 12.8, 6.4]),
    0.1: (0.1, [0, -6.4, 12.8, 6.4]),
    0.16: (0.16, [0, -10.24, 20.48, 10.24]),
    0.2: (0.16, [0, -10.24, 20.48, 10.24]),
    0.24: (0.16, [0, -10.24, 20.48, 10.24]),
}
SMALL = {"POOL_SIZE": 4, "NUM_KEYPOINTS": 64, "NUM_SAMPLED_POINTS": 64, "ROI_PER_IMAGE": 16, "NMS_POST_MAXSIZE": 24}
POINTS = {"BACKBONE_3D": [128, 64, 32, 16], "ROI_HEAD": [16, 8, -1]}


class SimulatedScenes(SceneDataset):
    """Scenes that were simulated, shifted so that an object lies in the middle of the range."""

    def __init__(self, scenes: list[Scene], **options: Any):
        super().__init__(training=True, seed=0, logger=logging.getLogger("zoo"), root=ROOT, **options)
        self.scenes = scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def load_scene(self, index: int) -> Scene:
        return self.scenes[index]

    def allows_empty(self) -> bool:
        return True


@functools.lru_cache(maxsize=4)
def simulated_scene(index: int) -> Scene:
    """A scene whose largest car is 6 m ahead."""
    frame = simulate_frame(3, index)
    boxes = np.stack([box for box in frame.world.boxes])
    names = np.array(frame.world.names)
    cars = np.flatnonzero(names == "Car")
    hits = np.bincount(frame.owner[frame.owner >= 0], minlength=len(names))
    shift = np.array([6.0, 0.0]) - boxes[cars[hits[cars].argmax()], :2]
    points = frame.points.copy()
    points[:, :2] += shift.astype(np.float32)
    boxes[:, :2] += shift
    keep = np.isin(names, ["Car", "Pedestrian", "Cyclist"]) & (hits > 5)
    return Scene(str(index), points, gt_boxes=boxes[keep].astype(np.float32), gt_names=names[keep])


@functools.lru_cache(maxsize=1)
def small_config(name: str) -> dict[str, Any]:
    """The configuration with a small range, few filters in two dimensions and few points."""
    settings = copy.deepcopy(load_config(ROOT / "cfgs" / f"{name}.yaml").settings)
    data, model = settings.DATA_CONFIG, settings.MODEL
    low, high = data.POINT_CLOUD_RANGE[2], data.POINT_CLOUD_RANGE[5]
    x1, y1, x2, y2 = GRIDS[0.05][1]
    for block in data.DATA_PROCESSOR:
        if "VOXEL_SIZE" in block:
            size, (x1, y1, x2, y2) = GRIDS[block.VOXEL_SIZE[0]]
            block.VOXEL_SIZE = [size, size, block.VOXEL_SIZE[2]]
        if "NUM_POINTS" in block:
            block.NUM_POINTS = {"train": 512, "test": 512}
    data.POINT_CLOUD_RANGE = [x1, y1, low, x2, y2, high]
    _shrink(model)
    for slot, points in POINTS.items():
        if "NPOINTS" in model.get(slot, {}).get("SA_CONFIG", {}):
            model[slot].SA_CONFIG.NPOINTS = points
    model.get("BACKBONE_2D", {}).update(LAYER_NUMS=[1] * len(model.get("BACKBONE_2D", {}).get("LAYER_NUMS", [])))
    if "INPUT_SHAPE" in model.get("MAP_TO_BEV", {}):
        model.MAP_TO_BEV.INPUT_SHAPE = [128, 128, model.MAP_TO_BEV.INPUT_SHAPE[2]]
    return settings


def _shrink(block: Any) -> None:
    """Smaller numbers for the keys of SMALL, narrower layers for heads over regions; in place."""
    for key, value in block.items():
        if isinstance(value, dict):
            _shrink(value)
        elif key in SMALL and isinstance(value, int):
            block[key] = min(value, SMALL[key])
        elif key in ("SHARED_FC", "IOU_FC") or (key in ("CLS_FC", "REG_FC") and "DP_RATIO" in block):
            block[key] = [16] * len(value)


def small_dataset(name: str, scenes: list[Scene], **voxel_options: Any) -> SimulatedScenes:
    """The scenes as the configuration's processors make them; ``voxel_options`` change the voxelizer's."""
    config = small_config(name)
    scenes = [as_own_data(scene, config) if "Car" not in config.CLASS_NAMES else scene for scene in scenes]
    processors = [
        {**block, **voxel_options} if "MAX_NUMBER_OF_VOXELS" in block else block
        for block in config.DATA_CONFIG.DATA_PROCESSOR
    ]
    return SimulatedScenes(
        scenes,
        class_names=config.CLASS_NAMES,
        point_cloud_range=config.DATA_CONFIG.POINT_CLOUD_RANGE,
        point_feature_encoding=config.DATA_CONFIG.POINT_FEATURE_ENCODING,
        data_augmentor=None,
        data_processor=processors,
    )


def as_own_data(scene: Scene, config: dict[str, Any]) -> Scene:
    """With the name that cars have in configurations for own data, and as high in the range as before."""
    lift = np.array([0, 0, config.DATA_CONFIG.POINT_CLOUD_RANGE[2] + 3, 0, 0, 0, 0], dtype=np.float32)
    names = np.where(scene.gt_names == "Car", config.CLASS_NAMES[0], scene.gt_names)
    points = scene.points + lift[: scene.points.shape[1]]
    return scene.with_(points=points, gt_boxes=scene.gt_boxes + lift, gt_names=names)


def batch_of(dataset: SimulatedScenes) -> Batch:
    """All scenes in one batch."""
    return dataset.collate([dataset[i] for i in range(len(dataset))])


@functools.lru_cache(maxsize=1)
def small_model(name: str) -> nn.Module:
    """The model, with weights that depend on nothing but the configuration."""
    torch.manual_seed(0)
    return build_model(small_config(name).MODEL, small_dataset(name, [simulated_scene(0)]).info)
