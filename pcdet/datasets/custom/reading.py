"""How the clouds and labels of a folder are read: what a DATA_CONFIG says of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.cloud_formats import CloudLayout, read_points
from pcdet.datasets.custom.folder import CustomFolder
from pcdet.datasets.custom.label_formats import Parsed, label_format
from pcdet.datasets.custom.labels import Labels, usable
from pcdet.datasets.custom.sweeps import TIME, Sweep, moved, read_sweeps
from pcdet.datasets.dataset import cloud_layout
from pcdet.structures.box_convention import BoxConvention


@dataclass(frozen=True)
class CustomReader:
    """A folder and the conventions of its files.

    Raises ``ValueError`` for a label format that is not known, or a BOX_CONVENTION where the format has its own.
    """

    folder: CustomFolder
    layout: CloudLayout
    box_convention: Mapping[str, Any] | None = None
    class_map: Mapping[str, str | None] | None = None
    label_format: str = "openpcdet"
    max_sweeps: int = 1

    def __post_init__(self):
        if label_format(self.label_format).has_own_convention and self.box_convention:
            raise ValueError(
                f"BOX_CONVENTION says nothing where LABEL_FORMAT is {self.label_format}, which has its own; remove it, "
                "or set LABEL_FORMAT kitti_lidar if the boxes stand in the LiDAR frame"
            )
        if self.max_sweeps < 1:
            raise ValueError(f"MAX_SWEEPS is {self.max_sweeps}; 1 is the frame alone")
        _ = self.convention  # other values than the known ones are an error at once

    @staticmethod
    def from_settings(root: Path, settings: Mapping[str, Any]) -> "CustomReader":
        """Of POINT_FEATURE_ENCODING, BOX_CONVENTION, CLASS_MAP, LABEL_FORMAT and MAX_SWEEPS."""
        return CustomReader(
            CustomFolder(root),
            cloud_layout(settings["POINT_FEATURE_ENCODING"]),
            settings.get("BOX_CONVENTION"),
            settings.get("CLASS_MAP"),
            settings.get("LABEL_FORMAT", "openpcdet"),
            settings.get("MAX_SWEEPS", 1),
        )

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of :meth:`points`."""
        return self.layout.features

    @property
    def convention(self) -> BoxConvention:
        """The boxes' convention: what the label format usually means, then BOX_CONVENTION."""
        return BoxConvention(**{**label_format(self.label_format).convention, **(self.box_convention or {})})

    def points(self, frame_id: str) -> tuple[np.ndarray, int]:
        """(N, C) float32 points of a frame and its earlier sweeps, and how many were dropped as not finite."""
        path = self.folder.cloud_path(frame_id)
        if self.max_sweeps == 1:
            return read_points(path, self.layout)
        own, dropped = self.timed(path, 0.0)
        clouds = [own]
        for sweep in self.sweeps(frame_id):
            points, lost = self.timed(sweep.cloud, sweep.age)
            clouds.append(moved(points, sweep.motion))
            dropped += lost
        return np.concatenate(clouds), dropped

    def sweeps(self, frame_id: str) -> list[Sweep]:
        """The frame's latest earlier sweeps, as many as MAX_SWEEPS leaves beside its own."""
        if not (self.folder.root / "sweeps").is_dir():
            raise FileNotFoundError(
                f"MAX_SWEEPS is {self.max_sweeps}, but {self.folder.root / 'sweeps'} is missing; it holds a file "
                "<frame>.txt for each frame with the lines 'cloud seconds' and the 3 x 4 matrix into the frame"
            )
        known = sorted(read_sweeps(self.folder.sweeps_path(frame_id), self.folder.root), key=lambda s: s.age)
        return known[: self.max_sweeps - 1]

    def timed(self, cloud: Path, age: float) -> tuple[np.ndarray, int]:
        """As :func:`read_points`; with several sweeps the feature ``timestamp`` is their age, not read from files."""
        if TIME not in self.layout.features:
            return read_points(cloud, self.layout)
        column = self.layout.features.index(TIME)
        without = tuple(f for f in self.layout.features if f != TIME)
        missing = {k: v for k, v in self.layout.missing_values.items() if k != TIME}
        points, dropped = read_points(cloud, replace(self.layout, features=without, missing_values=missing))
        return np.insert(points, column, np.float32(age), axis=1), dropped

    def parse_labels(self, frame_id: str) -> Parsed:
        """A frame's label rows and everything in its file that is malformed."""
        return label_format(self.label_format).read(self.folder, frame_id)

    def labels(self, frame_id: str) -> Labels:
        """A frame's objects. Raises ``FileNotFoundError``, or ``ValueError`` naming the places of malformed labels."""
        rows, faults = self.parse_labels(frame_id)
        if faults:
            more = f" ({len(faults) - 1} more lines of this frame are malformed)" if faults[1:] else ""
            raise ValueError(faults[0] + more)
        return usable(rows, self.convention, self.class_map or {})
