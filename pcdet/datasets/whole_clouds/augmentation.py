"""Augmentation of single clouds, as PointNet++ trains with it (Qi et al. 2017, sec. 3.1 of the supplement)."""

import math
from collections.abc import Sequence
from typing import Literal, TypedDict

import numpy as np

AXES = {"x": 0, "y": 1, "z": 2}


class CloudAugmentation(TypedDict, total=False):
    """The block AUGMENTATION. What is left out is not done; the steps run in the order given here."""

    UP_AXIS: Literal["x", "y", "z"]  # axis of ROTATION, y if left out (ModelNet)
    ROTATION: list[float]  # [low, high] radians about the up axis
    PERTURB_SIGMA: float  # radians; small turns about all three axes
    PERTURB_CLIP: float
    SCALE: list[float]  # [low, high], one factor a cloud
    SCALE_PER_AXIS: bool  # three factors instead; normals are then turned as the surface is
    SHIFT: float  # a cloud moves by up to this along each axis
    JITTER_SIGMA: float  # noise of each coordinate
    JITTER_CLIP: float
    DROPOUT: float  # the share of points replaced by point 0 is drawn between 0 and this
    SHUFFLE: bool  # permute the points, which changes where furthest point sampling starts


class CloudAugmentor:
    """Applies an AUGMENTATION block to clouds. Raises ``ValueError`` for numbers out of range."""

    def __init__(self, settings: CloudAugmentation):
        self.axis = AXES[settings.get("UP_AXIS", "y")]
        self.rotation = _pair(settings.get("ROTATION", (0.0, 0.0)), "ROTATION")
        self.perturb = _sigma_and_clip(settings, "PERTURB")
        self.scale = _pair(settings.get("SCALE", (1.0, 1.0)), "SCALE")
        self.scale_axes = 3 if settings.get("SCALE_PER_AXIS", False) else 1
        self.shift = float(settings.get("SHIFT", 0.0))
        self.jitter = _sigma_and_clip(settings, "JITTER")
        self.dropout = float(settings.get("DROPOUT", 0.0))
        self.shuffle = bool(settings.get("SHUFFLE", False))
        if self.scale[0] <= 0:
            raise ValueError(f"AUGMENTATION.SCALE should be above 0, got {list(self.scale)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"AUGMENTATION.DROPOUT should lie in [0, 1), got {self.dropout}")

    def __call__(
        self,
        cloud: np.ndarray,  # (N, 3 + C) float32
        vectors: slice | None,  # columns that hold directions (normals) and turn with the cloud
        rng: np.random.Generator,
    ) -> np.ndarray:
        """An augmented copy. Directions are turned and stay unit vectors; they are not moved."""
        return self.with_rows(cloud, vectors, rng)[0]

    def with_rows(
        self, cloud: np.ndarray, vectors: slice | None, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The augmented copy (N, 3 + C), and which row of the cloud each of its rows was (N,)."""
        cloud, rows = cloud.copy(), np.arange(len(cloud))
        turn = self._draw_turn(rng)
        cloud[:, :3] = cloud[:, :3] @ turn
        if vectors is not None:
            cloud[:, vectors] = cloud[:, vectors] @ turn
        scale = rng.uniform(*self.scale, size=self.scale_axes)
        cloud[:, :3] *= scale
        if vectors is not None and self.scale_axes == 3:
            cloud[:, vectors] = _rescaled_normals(cloud[:, vectors], scale)
        cloud[:, :3] += rng.uniform(-self.shift, self.shift, size=3)
        sigma, clip = self.jitter
        if sigma > 0:
            cloud[:, :3] += np.clip(rng.normal(0, sigma, size=(len(cloud), 3)), -clip, clip)
        if self.dropout > 0:
            rows[rng.random(len(cloud)) <= rng.uniform(0, self.dropout)] = 0
        if self.shuffle:
            rows = rng.permutation(rows)
        return cloud[rows], rows

    def _draw_turn(self, rng: np.random.Generator) -> np.ndarray:
        """(3, 3) float32, multiplied to row vectors from the right."""
        turn = rotation_matrix(self.axis, rng.uniform(*self.rotation))
        sigma, clip = self.perturb
        if sigma > 0:
            angles = np.clip(rng.normal(0, sigma, size=3), -clip, clip)
            x, y, z = (rotation_matrix(axis, angle) for axis, angle in enumerate(angles))
            turn = turn @ (z @ y @ x)
        return turn.astype(np.float32)


def _rescaled_normals(normals: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Unit normals (N, 3) of a surface after its axes were scaled by (3,): they are covectors."""
    normals = normals / scale
    return normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)


def rotation_matrix(axis: int, angle: float) -> np.ndarray:
    """(3, 3) right-handed turn of column vectors by ``angle`` radians about axis 0, 1 or 2."""
    matrix = np.eye(3)
    i, j = (axis + 1) % 3, (axis + 2) % 3
    matrix[i, i] = matrix[j, j] = math.cos(angle)
    matrix[j, i] = math.sin(angle)
    matrix[i, j] = -math.sin(angle)
    return matrix


def _pair(value: Sequence[float], key: str) -> tuple[float, float]:
    low, high = (float(v) for v in value) if len(value) == 2 else (1.0, 0.0)
    if low > high:
        raise ValueError(f"AUGMENTATION.{key} should be [low, high] with low <= high, got {list(value)}")
    return low, high


def _sigma_and_clip(settings: CloudAugmentation, key: str) -> tuple[float, float]:
    sigma = float(settings.get(f"{key}_SIGMA", 0.0))
    clip = float(settings.get(f"{key}_CLIP", math.inf))
    if sigma < 0 or clip <= 0:
        raise ValueError(f"AUGMENTATION.{key}_SIGMA should not be negative and {key}_CLIP positive: {sigma}, {clip}")
    return sigma, clip
