"""What augmentors and processors have in common: a transform maps (scene, generator) to a new scene."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pcdet.structures.scene import Scene
from pcdet.utils.registry import Registry, construct

Transform = Callable[[Scene, np.random.Generator], Scene]


def build_transforms(registry: Registry, blocks: Iterable[Mapping[str, Any]], context: Any, where: str) -> list:
    """One transform a YAML block, in the YAML's order.

    ``where`` is the blocks' key path, which error messages name. Raises ``ValueError`` for a block without NAME, an
    unknown name or option.
    """
    transforms = []
    for position, block in enumerate(blocks):
        place = f"{where}.{position}"
        if "NAME" not in block:
            raise ValueError(f"{place} has no NAME, which says what {registry.slot} it is for")
        try:
            cls = registry[block["NAME"]]
        except KeyError as error:
            raise ValueError(f"{place}: {error.args[0]}") from error
        transforms.append(construct(cls, dict(block), context, where=place))
    return transforms


def select_boxes(scene: Scene, keep: np.ndarray) -> Scene:
    """The scene with only the boxes of the mask (or indices) ``keep``."""
    if scene.gt_boxes is None:
        return scene
    return scene.with_(gt_boxes=scene.gt_boxes[keep], gt_names=scene.gt_names[keep])


def number_pair(value: float | Sequence[float], what: str) -> tuple[float, float]:
    """``[low, high]`` as it is, and a single number ``a`` as ``(-a, a)``.

    Raises ``ValueError`` unless ``low <= high``.
    """
    pair = (-abs(value), abs(value)) if isinstance(value, (int, float)) else tuple(float(v) for v in value)
    if len(pair) != 2 or pair[0] > pair[1]:
        raise ValueError(f"{what} should be [low, high] with low <= high, got {value}")
    return float(pair[0]), float(pair[1])
