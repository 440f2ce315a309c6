"""Data sets: they read raw data and hand out items; :func:`build_dataset` is the door."""

import functools
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.logging import get_logger
from pcdet.utils.registry import Registry, construct, nearest

DATASETS = Registry("dataset")

# The module that registers each data set; it is imported when the data set is asked for.
_HOMES = {
    "CustomDataset": "pcdet.datasets.custom.custom_dataset",
    "KittiDataset": "pcdet.datasets.kitti.kitti_dataset",
    "ModelNetDataset": "pcdet.datasets.modelnet.modelnet_dataset",
    "ObjectCropsDataset": "pcdet.datasets.modelnet.object_crops",
    "S3DISDataset": "pcdet.datasets.s3dis.s3dis_dataset",
    "ScanNetDataset": "pcdet.datasets.scannet.scannet_dataset",
    "ShapeNetPartDataset": "pcdet.datasets.shapenetpart.shapenetpart_dataset",
}


def build_dataset(
    data_settings: Mapping[str, Any],
    class_names: Sequence[str],
    *,
    training: bool,
    seed: int = 0,
    root: str | Path | None = None,
) -> Any:
    """The data set that a YAML's DATA_CONFIG describes.

    ``root`` replaces DATA_PATH. Raises ``KeyError`` for an unknown DATASET and ``ValueError`` for an option that it
    does not take.
    """
    cls = _class_of(data_settings)
    settings = dict(data_settings)
    if root is not None:
        settings["DATA_PATH"] = str(root)
    context = {"class_names": list(class_names), "training": training, "seed": seed, "logger": get_logger()}
    for key in context:
        if key.upper() in settings:
            raise ValueError(f"DATA_CONFIG: {cls.__name__} takes no option {key.upper()}, the command decides it")
    make = functools.partial(cls, **context)
    # What `construct` asks of a class.
    make.__name__ = cls.__name__
    make.ignored_keys = getattr(cls, "ignored_keys", ())
    return construct(make, settings, where="DATA_CONFIG")


def describe_clouds(data_settings: Mapping[str, Any], class_names: Sequence[str]) -> DatasetInfo:
    """What a model of whole clouds is told by the data set of a DATA_CONFIG, without its files.

    Raises ``KeyError`` for an unknown DATASET and ``ValueError`` for one of scenes, which is described by its range.
    """
    cls = _class_of(data_settings)
    if not hasattr(cls, "describe") or "POINT_CLOUD_RANGE" in data_settings:
        raise ValueError(f"{cls.__name__} is a data set of scenes, not of whole clouds")
    return cls.describe(class_names, dict(data_settings))


def _class_of(data_settings: Mapping[str, Any]) -> type:
    name = str(data_settings["DATASET"])
    if name not in _HOMES and name not in DATASETS:
        raise KeyError(f"No dataset is called '{name}'.{nearest(name, {*_HOMES, *DATASETS})}")
    if name not in DATASETS:
        importlib.import_module(_HOMES[name])
    return DATASETS[name]
