"""KITTI labels of simulated objects: 2-D box, truncation, occlusion and alpha."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pcdet.structures.boxes import boxes_to_kitti_camera, kitti_camera_corners, wrap_angle
from pcdet.structures.calibration import Calibration

IMAGE_SHAPE = (375, 1242)  # height, width of the camera's image in pixels
_NEAR = 0.1  # metres in front of the camera at which boxes are cut
_EDGES = ((0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7))
# Share of an object's rays that reach it, above which it is called occluded 0, 1, 2; otherwise 3.
_VISIBLE_SHARE = (0.8, 0.45, 0.1)
_MAX_TRUNCATION = 0.95
_MIN_HEIGHT = 15.0  # pixels; smaller objects become DontCare
_MIN_POINTS = 2  # with fewer points they become DontCare too


class Label(NamedTuple):
    """One line of a KITTI label file."""

    name: str
    truncated: float  # share of the 2-D box outside the image
    occluded: int  # 0 fully visible, 1 partly, 2 largely occluded, 3 unknown
    alpha: float  # observation angle in [-pi, pi)
    bbox: tuple[float, float, float, float]  # x1 y1 x2 y2 in pixels
    size: tuple[float, float, float]  # height, width, length in metres
    location: tuple[float, float, float]  # bottom centre in the rectified camera frame
    rotation_y: float

    def line(self) -> str:
        numbers = (self.alpha, *self.bbox, *self.size, *self.location, self.rotation_y)
        return f"{self.name} {self.truncated:.2f} {self.occluded} " + " ".join(f"{v:.2f}" for v in numbers)


def make_labels(
    names: Sequence[str],
    boxes: np.ndarray,
    visible: np.ndarray,
    own: np.ndarray,
    points: np.ndarray,
    calib: Calibration,
) -> list[Label]:
    """Labels of the objects in the camera's view, DontCare last.

    Objects that are far too small in the image or have next to no points become DontCare; objects that are hidden
    altogether, or lie outside the image by more than 95 %, get no label.

    Args:
        names: (M,) KITTI class, empty for things without a label.
        boxes: (M, 7) LiDAR boxes.
        visible, own: (M,) rays that meet the object, and that would if it stood alone.
        points: (M,) points in the cloud.
        calib: the frame's calibration.
    """
    wanted = [m for m, name in enumerate(names) if name]
    camera = boxes_to_kitti_camera(boxes[wanted], calib)
    labels, ignored = [], []
    for m, box in zip(wanted, camera, strict=True):
        seen = image_box(box, calib)
        if seen is None or seen[1] > _MAX_TRUNCATION:
            continue
        bbox, truncated = seen
        small = bbox[3] - bbox[1] < _MIN_HEIGHT
        if small or points[m] < _MIN_POINTS:
            if small or visible[m] > 0 or own[m] == 0:
                ignored.append(_dont_care(bbox))
            continue
        labels.append(_label(names[m], box, bbox, truncated, occlusion(visible[m], own[m])))
    return labels + ignored


def _label(name: str, box: np.ndarray, bbox, truncated: float, occluded: int) -> Label:
    x, y, z, length, height, width, rotation_y = (float(v) for v in box)
    alpha = float(wrap_angle(rotation_y - math.atan2(x, z)))
    return Label(name, truncated, occluded, alpha, bbox, (height, width, length), (x, y, z), rotation_y)


def _dont_care(bbox: tuple[float, float, float, float]) -> Label:
    return Label("DontCare", -1.0, -1, -10.0, bbox, (-1.0, -1.0, -1.0), (-1000.0, -1000.0, -1000.0), -10.0)


def occlusion(visible: int, own: int) -> int:
    """KITTI's occlusion level from the rays that reach an object and those that would if it stood alone."""
    share = visible / own if own > 0 else 0.0
    return sum(share <= limit for limit in _VISIBLE_SHARE)


def image_box(box: np.ndarray, calib: Calibration) -> tuple[tuple[float, float, float, float], float] | None:
    """Pixel box around a camera box (7,), clipped to the image, and the share of it that was clipped away.

    The part behind the camera is cut off first. ``None`` where nothing lies before the camera or inside the image.
    """
    corners = kitti_camera_corners(box[None].astype(np.float64))[0]  # (8, 3)
    front = _before_camera(corners)
    if len(front) == 0:
        return None
    pixels, _ = calib.rect_to_image(front)
    (x1, y1), (x2, y2) = pixels.min(axis=0), pixels.max(axis=0)
    height, width = IMAGE_SHAPE
    cx1, cx2 = max(x1, 0.0), min(x2, width - 1.0)
    cy1, cy2 = max(y1, 0.0), min(y2, height - 1.0)
    if cx2 <= cx1 or cy2 <= cy1:
        return None
    kept = (cx2 - cx1) * (cy2 - cy1) / ((x2 - x1) * (y2 - y1))
    return (float(cx1), float(cy1), float(cx2), float(cy2)), float(1 - kept)


def _before_camera(corners: np.ndarray) -> np.ndarray:
    """Corners (8, 3) with a depth of at least ``_NEAR``, and the points where edges cross that depth."""
    depth = corners[:, 2]
    points = list(corners[depth >= _NEAR])
    for a, b in _EDGES:
        if (depth[a] - _NEAR) * (depth[b] - _NEAR) < 0:
            share = (_NEAR - depth[a]) / (depth[b] - depth[a])
            points.append(corners[a] + share * (corners[b] - corners[a]))
    return np.array(points).reshape(-1, 3)
