"""Data sets: they read raw data and hand out items; :func:`build_dataset` is the door."""

import functools
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pcdet.utils.logging import get_logger
from pcdet.utils.registry import Registry, construct, nearest

DATASETS = Registry("dataset")

# The module that registers each data set; it is imported when the data set is asked for.
_HOMES = {
    "CustomDataset": "pcdet.datasets.custom.custom_dataset",
    "KittiDataset": "pcdet.datasets.kitti.kitti_dataset",
    "ModelNetDataset": "pcdet.datasets.modelnet.modelnet_dataset",
    "ObjectCropsDataset": "pcdet.datasets.modelnet.object_crops",
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
    name = str(data_settings["DATASET"])
    if name not in _HOMES and name not in DATASETS:
        raise KeyError(f"No dataset is called '{name}'.{nearest(name, {*_HOMES, *DATASETS})}")
    if name not in DATASETS:
        importlib.import_module(_HOMES[name])
    settings = dict(data_settings)
    if root is not None:
        settings["DATA_PATH"] = str(root)
    context = {"class_names": list(class_names), "training": training, "seed": seed, "logger": get_logger()}
    for key in context:
        if key.upper() in settings:
            raise ValueError(f"DATA_CONFIG: {name} takes no option {key.upper()}, the command decides it")
    cls = DATASETS[name]
    make = functools.partial(cls, **context)
    # What `construct` asks of a class.
    make.__name__ = cls.__name__
    make.ignored_keys = getattr(cls, "ignored_keys", ())
    return construct(make, settings, where="DATA_CONFIG")
