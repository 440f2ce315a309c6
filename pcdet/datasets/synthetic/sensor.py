"""The simulated scanner: 64 rings in two blocks, mounted like KITTI's, with the car's own shadow."""

import functools
from typing import NamedTuple

import numpy as np

MOUNT_HEIGHT = 1.73  # metres from the road to the origin of the LiDAR frame
MIN_RANGE, MAX_RANGE = 2.0, 80.0  # metres
COLUMNS = 2157  # firings a turn

# (top, bottom) elevation in degrees and the height in metres above the frame's origin at which the rays start.
_UPPER_BLOCK = (2.0, -8.33, 0.12)
_LOWER_BLOCK = (-8.83, -24.33, 0.09)
_RINGS_PER_BLOCK = 32

# Where the carrying vehicle hides the ground: centre azimuth in degrees, first ring, half width in degrees at that
# ring and at the lowest ring.
_EGO_SHADOWS = (
    (184.0, 44, 8.0, 34.0),
    (287.0, 50, 3.0, 12.0),
    (0.0, 58, 7.0, 16.0),
    (42.0, 58, 1.0, 2.5),
    (88.0, 58, 1.0, 3.0),
    (133.0, 58, 1.0, 2.5),
    (318.0, 58, 1.0, 2.0),
)


class Sensor(NamedTuple):
    """Ray directions by ring (R, from the top) and column (W, counter-clockwise from straight ahead)."""

    cos_elevation: np.ndarray  # (R,)
    sin_elevation: np.ndarray  # (R,)
    tan_elevation: np.ndarray  # (R,) falls from ring to ring
    origin_z: np.ndarray  # (R,) metres
    cos_azimuth: np.ndarray  # (W,)
    sin_azimuth: np.ndarray  # (W,)
    shadow: np.ndarray  # (R, W) bool, True where the carrying vehicle blocks the ray

    @property
    def shape(self) -> tuple[int, int]:
        return self.shadow.shape


@functools.lru_cache(maxsize=1)
def scanner() -> Sensor:
    """The 64-ring scanner of the simulation."""
    blocks = (_UPPER_BLOCK, _LOWER_BLOCK)
    elevation = np.radians(np.concatenate([np.linspace(top, low, _RINGS_PER_BLOCK) for top, low, _ in blocks]))
    origin_z = np.repeat([z for _, _, z in blocks], _RINGS_PER_BLOCK)
    azimuth = np.arange(COLUMNS) * (2 * np.pi / COLUMNS)
    return Sensor(
        np.cos(elevation),
        np.sin(elevation),
        np.tan(elevation),
        origin_z,
        np.cos(azimuth),
        np.sin(azimuth),
        _ego_shadow(len(elevation), np.degrees(azimuth)),
    )


def _ego_shadow(rings: int, azimuth: np.ndarray) -> np.ndarray:
    """(R, W) bool; the sectors widen linearly towards the lowest ring."""
    shadow = np.zeros((rings, len(azimuth)), dtype=bool)
    for centre, first, narrow, wide in _EGO_SHADOWS:
        half = np.interp(np.arange(rings), [first, rings - 1], [narrow, wide])
        distance = np.abs((azimuth - centre + 180) % 360 - 180)
        shadow |= (distance[None] < half[:, None]) & (np.arange(rings)[:, None] >= first)
    return shadow
