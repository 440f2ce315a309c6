"""Every classifier and segmenter of the YAML files, made small, and batches for them."""

import copy
import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pcdet.config import load_config
from pcdet.datasets import describe_clouds
from pcdet.models.build import build_model
from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("modelnet_models", "shapenetpart_models", "s3dis_models", "scannet_models", "synthetic_models")
NAMES = sorted(
    str(path.relative_to(ROOT / "cfgs").with_suffix(""))
    for folder in FOLDERS
    for path in (ROOT / "cfgs" / folder).glob("*.yaml")
    if path.stem.startswith("pointnet")
)
POINTS = 96


@functools.lru_cache(maxsize=4)
def settings_of(name: str) -> Any:
    """The configuration with few centres, few neighbours and narrow layers."""
    settings = copy.deepcopy(load_config(ROOT / "cfgs" / f"{name}.yaml").settings)
    model = settings.MODEL
    sizes = model.BACKBONE_3D.get("SA_CONFIG", {})
    if sizes:
        sizes.NPOINTS = [32, 16, 8, 4][: len(sizes.NPOINTS)]
    _narrow(model)
    return settings


def _narrow(block: Any) -> None:
    for key, value in block.items():
        if isinstance(value, dict):
            _narrow(value)
        elif key in ("MLPS", "GLOBAL_MLP", "FP_MLPS", "HIDDEN", "MLP_BEFORE", "MLP_AFTER", "ALIGN_MLP", "ALIGN_HIDDEN"):
            block[key] = _divided(value)
        elif key == "NSAMPLE":
            block[key] = [[8] * len(v) if isinstance(v, list) else 8 for v in value]


def _divided(value: Any) -> Any:
    return [_divided(v) for v in value] if isinstance(value, list) else max(value // 16, 4)


def info_of(name: str) -> DatasetInfo:
    settings = settings_of(name)
    return describe_clouds(settings.DATA_CONFIG, settings.CLASS_NAMES)


def small_model(name: str) -> nn.Module:
    """The model, with weights that depend on nothing but the configuration."""
    torch.manual_seed(0)
    return build_model(settings_of(name).MODEL, info_of(name))


def batch_of(name: str, size: int = 4, points: int = POINTS) -> Batch:
    """Random clouds with labels; ``class_labels`` for classifiers, ``point_labels`` for segmenters."""
    info, draw = info_of(name), torch.Generator().manual_seed(size)
    clouds = torch.rand(size, points, info.num_point_features, generator=draw)
    batch = {
        "batch_size": size,
        "frame_id": [str(i) for i in range(size)],
        "index": list(range(size)),
        "point_clouds": clouds,
    }
    if settings_of(name).MODEL.NAME == "Classifier":
        return batch | {"class_labels": torch.arange(size) % info.num_class}
    batch["point_labels"] = torch.randint(0, info.num_class, (size, points), generator=draw)
    if info.category_names:
        batch["categories"] = torch.arange(size) % len(info.category_names)
    return batch
