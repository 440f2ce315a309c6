"""The augmentors of DATA_AUGMENTOR and what they are told."""

import logging
from dataclasses import dataclass
from pathlib import Path

from pcdet.utils.registry import Registry

AUGMENTS = Registry("augmentor")


@dataclass(frozen=True)
class AugmentContext:
    """What every augmentor may know of its data set."""

    root: Path  # the data set's folder
    class_names: tuple[str, ...]
    num_point_features: int  # columns of scene.points while augmenting
    logger: logging.Logger
