"""Gently uneven ground with a curved road and kerbs."""

import math
from typing import NamedTuple

import numba
import numpy as np

from pcdet.datasets.synthetic.sensor import MOUNT_HEIGHT

# Distance in metres from the kerb's foot to its top.
_KERB_RUN = 0.08


class Ground(NamedTuple):
    """The surface z(x, y) in the LiDAR frame and the road on it.

    The road's centre line is ``y = offset + bearing * x + curvature * x^2 / 2`` (metres, radians, 1/metres).
    """

    slope: float  # rise along x
    roll: float  # rise along y
    waves: np.ndarray  # (2, 4) amplitude in metres, wave numbers along x and y, phase
    level: float  # metres added so that the road below the sensor is at its mounting height
    offset: float
    bearing: float
    curvature: float
    half_width: float  # metres
    kerb: float  # height in metres of the land beside the road

    def centre_line(self, x: float) -> tuple[float, float]:
        """Lateral position in metres and heading in radians of the road's centre at ``x``."""
        y = self.offset + self.bearing * x + self.curvature * x * x / 2
        return y, math.atan(self.bearing + self.curvature * x)


def draw_ground(rng: np.random.Generator) -> Ground:
    """A random ground whose road passes below the sensor."""
    wavelength = rng.uniform(14.0, 45.0, size=2)
    direction = rng.uniform(0, math.pi, size=2)
    number = 2 * math.pi / wavelength
    waves = np.stack(
        [
            rng.uniform(0.01, 0.05, size=2),
            number * np.cos(direction),
            number * np.sin(direction),
            rng.uniform(0, 2 * math.pi, size=2),
        ],
        axis=1,
    )
    return Ground(
        slope=float(np.clip(rng.normal(0, 0.010), -0.025, 0.025)),
        roll=float(np.clip(rng.normal(0, 0.008), -0.02, 0.02)),
        waves=waves,
        level=float(-(waves[:, 0] * np.sin(waves[:, 3])).sum()),
        offset=float(rng.uniform(-1.5, 1.5)),
        bearing=float(rng.normal(0, 0.02)),
        curvature=float(np.clip(rng.normal(0, 0.003), -0.008, 0.008)),
        half_width=float(rng.uniform(3.6, 7.5)),
        kerb=float(rng.uniform(0.05, 0.16)),
    )


@numba.njit(nogil=True, cache=True)
def ground_height(ground, x, y):
    """Height in metres at (x, y) in the LiDAR frame, and how far that is beyond the road's edge (negative on it)."""
    z = ground.level - MOUNT_HEIGHT + ground.slope * x + ground.roll * y
    waves = ground.waves
    for i in range(waves.shape[0]):
        z += waves[i, 0] * math.sin(waves[i, 1] * x + waves[i, 2] * y + waves[i, 3])
    beyond = abs(y - ground.offset - ground.bearing * x - 0.5 * ground.curvature * x * x) - ground.half_width
    if beyond > 0:
        z += ground.kerb * min(1.0, beyond / _KERB_RUN)
    return z, beyond


def plane_in_front(ground: Ground) -> np.ndarray:
    """(4,) a b c d of the least-squares plane of the ground 4 to 50 m ahead; (a, b, c) is the upward unit normal."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(4.0, 50.0, 2.0), np.arange(-12.0, 12.1, 2.0)))
    z = np.array([ground_height(ground, px, py)[0] for px, py in zip(x, y, strict=True)])
    (a, b, c), *_ = np.linalg.lstsq(np.stack([x, y, np.ones_like(x)], axis=1), z, rcond=None)
    return np.array([-a, -b, 1.0, -c]) / math.sqrt(a * a + b * b + 1)
