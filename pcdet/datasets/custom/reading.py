"""How the clouds and labels of a folder are read: what a DATA_CONFIG says of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.cloud_formats import read_points
from pcdet.datasets.custom.folder import CustomFolder
from pcdet.datasets.custom.labels import Labels, read_openpcdet, usable
from pcdet.datasets.dataset import feature_names
from pcdet.structures.box_convention import BoxConvention


@dataclass(frozen=True)
class CustomReader:
    """A folder and the conventions of its files."""

    folder: CustomFolder
    features: tuple[str, ...]
    convention: BoxConvention = BoxConvention()
    class_map: Mapping[str, str | None] | None = None

    @staticmethod
    def from_settings(root: Path, settings: Mapping[str, Any]) -> "CustomReader":
        """Of POINT_FEATURE_ENCODING, BOX_CONVENTION and CLASS_MAP."""
        features, _ = feature_names(settings["POINT_FEATURE_ENCODING"])
        convention = BoxConvention(**(settings.get("BOX_CONVENTION") or {}))
        return CustomReader(CustomFolder(root), features, convention, settings.get("CLASS_MAP"))

    def points(self, frame_id: str) -> tuple[np.ndarray, int]:
        """(N, C) float32 points of a frame, and how many were dropped as not finite."""
        return read_points(self.folder.cloud_path(frame_id), self.features)

    def labels(self, frame_id: str) -> Labels:
        """A frame's objects. Raises ``FileNotFoundError``, or ``ValueError`` naming the place of a malformed label."""
        path = self.folder.label_path(frame_id)
        if not path.is_file():
            raise FileNotFoundError(f"The labels {path} are missing; a frame without objects has an empty file")
        return usable(read_openpcdet(path), self.convention, self.class_map or {})
