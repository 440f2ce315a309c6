"""The calibration of the simulated rig: a camera mounted much like KITTI's."""

import functools

import numpy as np
from scipy.spatial.transform import Rotation

from pcdet.datasets.synthetic.ground import Ground, plane_in_front
from pcdet.structures.calibration import Calibration

_FOCAL, _CENTRE = 721.54, (609.56, 172.85)  # pixels
# x offset of the four cameras times the focal length, with the small y and z parts of the colour cameras.
_OFFSETS = ((0.0, 0.0, 0.0), (-387.57, 0.0, 0.0), (44.86, 0.216, 0.0027), (-339.5, 2.2, 0.0027))
_AXES = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]])  # LiDAR axes -> camera axes


@functools.lru_cache(maxsize=1)
def _matrices() -> dict[str, np.ndarray]:
    """The matrices of a KITTI object calib file by key."""
    rows = {}
    for i, (x, y, z) in enumerate(_OFFSETS):
        rows[f"P{i}"] = np.array([[_FOCAL, 0, _CENTRE[0], x], [0, _FOCAL, _CENTRE[1], y], [0, 0, 1, z]])
    rows["R0_rect"] = _turn(0.0043, -0.0074, -0.0098)
    rows["Tr_velo_to_cam"] = np.column_stack([_turn(0.0147, 0.0006, 0.0075) @ _AXES, [-0.004, -0.076, -0.272]])
    rows["Tr_imu_to_velo"] = np.column_stack([_turn(0.015, 0.002, -0.0008), [-0.81, 0.32, -0.8]])
    return rows


def calibration() -> Calibration:
    """The calibration of every simulated frame."""
    rows = _matrices()
    return Calibration(*(rows[key].astype(np.float32) for key in ("P2", "R0_rect", "Tr_velo_to_cam")))


def calibration_text() -> str:
    """A KITTI object calib file with all its keys."""
    lines = (f"{key}: " + " ".join(f"{v:.12e}" for v in matrix.ravel()) for key, matrix in _matrices().items())
    return "\n".join(lines) + "\n"


def _turn(x: float, y: float, z: float) -> np.ndarray:
    return Rotation.from_euler("xyz", [x, y, z]).as_matrix()


def plane_text(ground: Ground, calib: Calibration) -> str:
    """A KITTI road-plane file: a b c d in the rectified camera frame, the normal pointing up."""
    a, b, c, d = plane_in_front(ground)
    to_rect = calib.R0.astype(np.float64) @ calib.V2C.astype(np.float64)  # (3, 4)
    normal = to_rect[:, :3] @ np.array([a, b, c])
    offset = d - normal @ to_rect[:, 3]
    numbers = " ".join(f"{v:.6e}" for v in (*normal, offset))
    return f"# Plane\nWidth 4\nHeight 1\n{numbers}\n"
