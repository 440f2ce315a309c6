"""Single clouds with the calibration, image and labels that stand beside them in KITTI's layout."""

from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.clouds import CloudFiles
from pcdet.datasets.kitti.folder import camera_image_shape, in_camera_view, png_shape
from pcdet.datasets.kitti.labels import read_labels, to_annos
from pcdet.structures.calibration import Calibration
from pcdet.structures.scene import Scene


class CameraClouds(CloudFiles):
    """Clouds as files; one in a folder ``velodyne`` is seen with the ``calib`` and ``image_2`` beside that folder."""

    fov_points_only = True

    def read_scene(self, path: Path) -> Scene:
        """A cloud; where its calibration is known, only what the camera sees, as in training."""
        scene = super().read_scene(path)
        calib, image_shape = camera_of(path)
        if calib is None:
            return scene
        points = scene.points
        if self.fov_points_only:
            points = points[in_camera_view(points, calib, image_shape)]
        return scene.with_(points=points, calib=calib, image_shape=image_shape)


def camera_of(path: Path) -> tuple[Calibration | None, np.ndarray | None]:
    """Calibration and image size (height, width) of a cloud, where there is a ``calib`` file."""
    calib_path = path.parent.parent / "calib" / f"{path.stem}.txt"
    if path.parent.name != "velodyne" or not calib_path.is_file():
        return None, None
    calib = Calibration.from_file(calib_path)
    image = image_of(path)
    shape = png_shape(image) if image is not None else camera_image_shape(calib)
    return calib, np.array(shape, dtype=np.int32)


def image_of(path: Path) -> Path | None:
    """The camera image of a cloud."""
    image = path.parent.parent / "image_2" / f"{path.stem}.png"
    return image if path.parent.name == "velodyne" and image.is_file() else None


def annos_of(path: Path) -> dict[str, Any] | None:
    """The labels of a cloud, where there is a ``label_2`` file. Raises ``ValueError`` naming a malformed line."""
    labels = path.parent.parent / "label_2" / f"{path.stem}.txt"
    if path.parent.name != "velodyne" or not labels.is_file():
        return None
    return to_annos(read_labels(labels)[0])
