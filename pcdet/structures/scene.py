"""One labelled scene on its way through augmentation and processing."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pcdet.structures.calibration import Calibration


@dataclass(frozen=True)
class Scene:
    """A point cloud with its labels. Transforms return new scenes and leave the old one untouched.

    ``gt_boxes`` and ``gt_names`` are ``None`` where the split has no labels.
    """

    frame_id: str
    points: np.ndarray  # (N, C) float32, x y z first
    gt_boxes: np.ndarray | None = None  # (M, 7) float32
    gt_names: np.ndarray | None = None  # (M,) str
    calib: Calibration | None = None
    image_shape: np.ndarray | None = None  # (2,) int32 height, width
    road_plane: np.ndarray | None = None  # (4,) a b c d in the rectified camera frame
    extras: dict[str, Any] = field(default_factory=dict)  # what transforms add to the item: voxels, flip_x, ...

    def with_(self, **changes: Any) -> "Scene":
        """A copy with some fields replaced; ``extras`` given here are added to those already there."""
        if "extras" in changes:
            changes["extras"] = {**self.extras, **changes["extras"]}
        return replace(self, **changes)
