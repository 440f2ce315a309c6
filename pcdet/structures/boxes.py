"""Box geometry and the converters between box conventions.

Boxes are ``(x, y, z, dx, dy, dz, heading)``: metres, LiDAR frame (x forward, y left, z up), geometric centre,
heading counter-clockwise from +x in radians. Every other convention lives in a function that is named for it.
Functions take NumPy arrays or torch tensors where they say so, and keep the kind they were given.
"""

import math

import numpy as np
import torch
from torch import Tensor

from pcdet.structures.calibration import Calibration


def limit_period(value, offset: float = 0.5, period: float = math.pi):
    """Wrap angles (array or tensor) into ``[-offset * period, (1 - offset) * period)``."""
    floor = torch.floor if isinstance(value, Tensor) else np.floor
    return value - floor(value / period + offset) * period


def wrap_angle(value):
    """Wrap angles (array or tensor) into [-pi, pi)."""
    return limit_period(value, 0.5, 2 * math.pi)


# Corners 0-3 are the bottom, 4-7 the top, clockwise from the front left, in units of half the size.
CORNER_SIGNS = np.array(
    [[1, 1, -1], [1, -1, -1], [-1, -1, -1], [-1, 1, -1], [1, 1, 1], [1, -1, 1], [-1, -1, 1], [-1, 1, 1]],
    dtype=np.float32,
)


def box_corners(boxes):
    """(M, 7+) array or tensor -> (M, 8, 3) corners: the bottom four, then the top four above them.

    Order of each four: (+x +y), (+x -y), (-x -y), (-x +y) in the box's own frame.
    """
    if isinstance(boxes, Tensor):
        signs = torch.as_tensor(CORNER_SIGNS, dtype=boxes.dtype, device=boxes.device) / 2
        local = boxes[:, None, 3:6] * signs  # (M, 8, 3)
        cos, sin = boxes[:, 6].cos()[:, None], boxes[:, 6].sin()[:, None]
        x, y = local[..., 0], local[..., 1]
        rotated = torch.stack([x * cos - y * sin, x * sin + y * cos, local[..., 2]], dim=-1)
        return rotated + boxes[:, None, :3]
    dtype = boxes.dtype if np.issubdtype(boxes.dtype, np.floating) else np.float64
    local = boxes[:, None, 3:6] * (CORNER_SIGNS / 2).astype(dtype)
    cos, sin = np.cos(boxes[:, 6])[:, None], np.sin(boxes[:, 6])[:, None]
    x, y = local[..., 0], local[..., 1]
    return np.stack([x * cos - y * sin, x * sin + y * cos, local[..., 2]], axis=-1) + boxes[:, None, :3]


def rotate_z(points, angle):
    """Rotate (N, 3+) points by ``angle`` radians counter-clockwise about z; further columns are kept.

    Array or tensor; ``angle`` is a number or an (N,) array.
    """
    if isinstance(points, Tensor):
        angle = torch.as_tensor(angle, dtype=points.dtype, device=points.device)
        cos, sin = angle.cos(), angle.sin()
        xy = torch.stack([points[:, 0] * cos - points[:, 1] * sin, points[:, 0] * sin + points[:, 1] * cos], dim=1)
        return torch.cat([xy, points[:, 2:]], dim=1)
    cos, sin = np.cos(angle), np.sin(angle)
    out = points.copy()
    out[:, 0] = points[:, 0] * cos - points[:, 1] * sin
    out[:, 1] = points[:, 0] * sin + points[:, 1] * cos
    return out


def boxes_to_kitti_camera(boxes: np.ndarray, calib: Calibration) -> np.ndarray:
    """LiDAR boxes (M, 7) -> KITTI camera boxes (M, 7): x y z of the bottom centre (camera frame), l h w, rotation_y.

    ``rotation_y`` is wrapped into [-pi, pi).
    """
    boxes = np.asarray(boxes)
    bottom = boxes[:, :3].copy()
    bottom[:, 2] -= boxes[:, 5] / 2
    centre = calib.lidar_to_rect(bottom)
    rotation_y = wrap_angle(-boxes[:, 6] - np.pi / 2)
    return np.concatenate([centre, boxes[:, 3:4], boxes[:, 5:6], boxes[:, 4:5], rotation_y[:, None]], axis=1)


def boxes_from_kitti_camera(boxes: np.ndarray, calib: Calibration) -> np.ndarray:
    """KITTI camera boxes (M, 7) (x y z bottom centre, l h w, rotation_y) -> LiDAR boxes (M, 7)."""
    boxes = np.asarray(boxes)
    centre = calib.rect_to_lidar(boxes[:, :3])
    centre[:, 2] += boxes[:, 4] / 2
    heading = -(boxes[:, 6] + np.pi / 2)
    return np.concatenate([centre, boxes[:, 3:4], boxes[:, 5:6], boxes[:, 4:5], heading[:, None]], axis=1)


def kitti_camera_corners(boxes: np.ndarray) -> np.ndarray:
    """KITTI camera boxes (M, 7) -> (M, 8, 3) corners in the rectified camera frame (y down)."""
    length, height, width, rotation = boxes[:, 3], boxes[:, 4], boxes[:, 5], boxes[:, 6]
    x = np.stack([length, length, -length, -length] * 2, axis=1) / 2
    z = np.stack([width, -width, -width, width] * 2, axis=1) / 2
    y = np.concatenate([np.zeros((len(boxes), 4)), -np.repeat(height[:, None], 4, axis=1)], axis=1)
    cos, sin = np.cos(rotation)[:, None], np.sin(rotation)[:, None]
    return np.stack([cos * x + sin * z, y, -sin * x + cos * z], axis=-1) + boxes[:, None, :3]


def kitti_image_boxes(boxes: np.ndarray, calib: Calibration, image_shape=None) -> np.ndarray:
    """KITTI camera boxes (M, 7) -> (M, 4) pixel boxes x1 y1 x2 y2 around the projected corners.

    ``image_shape`` (height, width) clips them to the image. Corners behind the camera are projected as they are, as
    OpenPCDet does.
    """
    if len(boxes) == 0:
        return np.zeros((0, 4), dtype=np.float32)
    pixels, _ = calib.rect_to_image(kitti_camera_corners(boxes).reshape(-1, 3))
    pixels = pixels.reshape(-1, 8, 2)
    out = np.concatenate([pixels.min(axis=1), pixels.max(axis=1)], axis=1)
    if image_shape is not None:
        height, width = image_shape
        out[:, 0::2] = out[:, 0::2].clip(0, width - 1)
        out[:, 1::2] = out[:, 1::2].clip(0, height - 1)
    return out
