"""KITTI calibration: LiDAR, rectified camera and image frames."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcdet.utils.files import read_text


@dataclass(frozen=True)
class Calibration:
    """Projections of one frame. Matrices are row-major and act on column vectors."""

    P2: np.ndarray  # (3, 4) rectified camera 0 -> pixels of camera 2
    R0: np.ndarray  # (3, 3) camera 0 -> rectified camera 0
    V2C: np.ndarray  # (3, 4) LiDAR -> camera 0

    @staticmethod
    def from_file(path: str | Path) -> "Calibration":
        """Read a KITTI object calib file.

        Raises ``FileNotFoundError``, or ``ValueError`` naming the file and the missing or malformed key.
        """
        rows: dict[str, np.ndarray] = {}
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            key, _, values = line.partition(":")
            if not key.strip():
                continue
            try:
                # The first of two equal keys counts: OpenPCDet reads the line at the usual place.
                rows.setdefault(key.strip(), np.array([float(v) for v in values.split()]))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {key.strip()} holds something that is not a number") from error
        shapes = {"P2": (3, 4), "R0_rect": (3, 3), "Tr_velo_to_cam": (3, 4)}
        for key, shape in shapes.items():
            if key not in rows:
                raise ValueError(f"{path}: the key {key} is missing; a KITTI calib file has {', '.join(shapes)}")
            if rows[key].size != np.prod(shape):
                raise ValueError(f"{path}: {key} has {rows[key].size} numbers, expected {np.prod(shape)}")
            if not np.isfinite(rows[key]).all():
                raise ValueError(f"{path}: {key} holds a number that is not finite")
        return Calibration(*(rows[key].reshape(shape).astype(np.float32) for key, shape in shapes.items()))

    def lidar_to_rect(self, points: np.ndarray) -> np.ndarray:
        """(N, 3) LiDAR -> (N, 3) rectified camera frame."""
        return homogeneous(points[:, :3]) @ (self.V2C.T @ self.R0.T)

    def rect_to_lidar(self, points: np.ndarray) -> np.ndarray:
        """(N, 3) rectified camera frame -> (N, 3) LiDAR."""
        to_camera = np.eye(4, dtype=np.float64)
        to_camera[:3, :4] = self.V2C
        rectify = np.eye(4, dtype=np.float64)
        rectify[:3, :3] = self.R0
        inverse = np.linalg.inv(rectify @ to_camera)
        return (homogeneous(points[:, :3]) @ inverse.T)[:, :3].astype(points.dtype)

    def rect_to_image(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N, 3) rectified camera frame -> (N, 2) pixels u v and (N,) depth in metres."""
        projected = homogeneous(points[:, :3]) @ self.P2.T
        # A point in the camera's plane has no image; it lands at infinity and fails every field-of-view test.
        with np.errstate(divide="ignore", invalid="ignore"):
            pixels = projected[:, :2] / points[:, 2:3]
        return pixels, projected[:, 2] - self.P2[2, 3]

    def lidar_to_image(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N, 3) LiDAR -> (N, 2) pixels u v and (N,) depth in metres."""
        return self.rect_to_image(self.lidar_to_rect(points))


def homogeneous(points: np.ndarray) -> np.ndarray:
    """(N, 3) -> (N, 4) with a column of ones."""
    return np.concatenate([points, np.ones((len(points), 1), dtype=points.dtype)], axis=1)
