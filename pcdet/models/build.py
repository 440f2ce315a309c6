"""From the MODEL block of a configuration to a model."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from torch import nn

import pcdet.models
from pcdet.models.registry import MODELS, SLOTS
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import Registry, construct, nearest


def build_model(model_settings: Mapping[str, Any], info: DatasetInfo) -> nn.Module:
    """The model that a MODEL block describes, for data as ``info`` says.

    The block names a model and, one block each, the classes of its slots; what remains are options of the model.
    Raises ``ValueError`` for an unknown name, slot or option, and for slots that do not fit together.
    """
    register_everything()
    model_class = _look_up(MODELS, model_settings, "MODEL")
    slots: dict[str, nn.Module] = {}
    channels = _data_channels(info)
    for key, (attribute, registry) in SLOTS.items():
        if model_settings.get(key) is None:
            continue
        block, where = model_settings[key], f"MODEL.{key}"
        slot_class = _look_up(registry, block, where)
        known = _Channels(channels, where)
        slots[attribute] = construct(slot_class, block, info, known, where=where)
        channels |= getattr(slots[attribute], "out_channels", {})
    options = {key: value for key, value in model_settings.items() if key not in SLOTS and key != "NAME"}
    _require_no_foreign_slots(options)
    return construct(model_class, options, info, slots, where="MODEL")


class _Channels(dict):
    """Channels by batch key, as a slot's constructor gets them."""

    def __init__(self, channels: Mapping[str, int], where: str):
        super().__init__(channels)
        self.where = where

    def __missing__(self, key: str) -> int:
        raise ValueError(f"{self.where} reads '{key}', which no slot before it writes; there are {', '.join(self)}")


def register_everything() -> None:
    """Import every module of this package, so that all registries are filled."""
    for module in pkgutil.walk_packages(pcdet.models.__path__, "pcdet.models."):
        importlib.import_module(module.name)


def _look_up(registry: Registry, block: Mapping[str, Any], where: str) -> type:
    name = block.get("NAME") if isinstance(block, Mapping) else None
    if name is None:
        raise ValueError(f"{where}: the block has no NAME; it may be {', '.join(sorted(registry))}")
    if name not in registry:
        raise ValueError(f"{where}.NAME: no {registry.slot} is called '{name}'.{nearest(name, registry)}")
    return registry[name]


def _require_no_foreign_slots(options: Mapping[str, Any]) -> None:
    """A block with a NAME that is no slot belongs to a model that does not exist here, or is misspelt."""
    for key, value in options.items():
        if isinstance(value, Mapping) and "NAME" in value:
            raise ValueError(f"MODEL.{key}: there is no such slot; there are {', '.join(SLOTS)}.")


def _data_channels(info: DatasetInfo) -> dict[str, int]:
    """Channels of the keys that the data set writes."""
    return dict.fromkeys(("points", "voxels", "point_clouds"), info.num_point_features)
