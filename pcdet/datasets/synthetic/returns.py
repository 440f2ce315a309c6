"""From surfaces that were met to the points that a scanner reports: noise, lost returns and intensity."""

import numpy as np

from pcdet.datasets.synthetic.cast import Hits
from pcdet.datasets.synthetic.materials import DROPOUT, INDEX, MIRRORS, ROUGHNESS
from pcdet.datasets.synthetic.sensor import Sensor

_BASE_SIGMA, _SIGMA_PER_METRE = 0.018, 0.00015  # range noise
_NOISE_LIMIT = 2.5  # sigmas at which the noise is cut off
_BASE_DROPOUT = 0.004
_WEAK = 0.05  # received strength below which returns start to be lost
_WEAK_LOSS = 0.8
_MIRROR_START, _MIRROR_RUN, _MIRROR_LOSS = 15.0, 45.0, 0.85  # metres, metres, probability: car bodies far away


def sample_returns(sensor: Sensor, hits: Hits, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The cloud of one turn, ring by ring from the top, each counter-clockwise from straight ahead.

    Returns (N, 4) float32 x y z (metres, to the millimetre) and intensity (0 to 0.99, in steps of 0.01), and (N,)
    the index of the object each point lies on, -1 for the ground.
    """
    ring, column = np.nonzero(np.isfinite(hits.distance) & ~sensor.shadow)
    distance, cosine = hits.distance[ring, column], hits.cosine[ring, column]
    material = hits.material[ring, column]
    reflectivity = _reflectivity(hits.reflectivity[ring, column], material, rng)
    strength = reflectivity * (0.25 + 0.75 * cosine)
    kept = rng.random(len(distance)) >= _loss(distance, strength, material)
    ring, column, distance, material = ring[kept], column[kept], distance[kept], material[kept]
    sigma = np.hypot(_BASE_SIGMA + _SIGMA_PER_METRE * distance, ROUGHNESS[material])
    distance = distance + sigma * np.clip(rng.standard_normal(len(sigma)), -_NOISE_LIMIT, _NOISE_LIMIT)
    cloud = np.empty((len(distance), 4), dtype=np.float32)
    flat = distance * sensor.cos_elevation[ring]
    cloud[:, 0] = flat * sensor.cos_azimuth[column]
    cloud[:, 1] = flat * sensor.sin_azimuth[column]
    cloud[:, 2] = distance * sensor.sin_elevation[ring] + sensor.origin_z[ring]
    cloud[:, 3] = _intensity(reflectivity[kept], cosine[kept], rng)
    cloud[:, :3] = cloud[:, :3].round(3)
    return cloud, hits.owner[ring, column]


def _reflectivity(drawn: np.ndarray, material: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Objects keep what was drawn for them; the ground varies from point to point and has dark spots."""
    ground = np.isnan(drawn)
    road = material == INDEX["road"]
    level = np.where(road, rng.uniform(0.36, 0.46), rng.uniform(0.38, 0.56))
    mottled = level * (1 + 0.2 * rng.standard_normal(len(level)))
    dark = rng.random(len(level)) < 0.11
    return np.where(ground, np.where(dark, 0.15 * mottled, mottled), drawn)


def _loss(distance: np.ndarray, strength: np.ndarray, material: np.ndarray) -> np.ndarray:
    """Probability that a return is lost."""
    received = strength * (40.0 / np.maximum(distance, 1.0)) ** 1.3
    weak = np.clip(1 - received / _WEAK, 0, 1) * _WEAK_LOSS
    mirrored = np.where(MIRRORS[material], np.clip((distance - _MIRROR_START) / _MIRROR_RUN, 0, 1) * _MIRROR_LOSS, 0)
    return 1 - (1 - _BASE_DROPOUT) * (1 - DROPOUT[material]) * (1 - weak) * (1 - mirrored)


def _intensity(reflectivity: np.ndarray, cosine: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The scanner corrects most of what grazing incidence costs, so little of it is left in the intensity."""
    noisy = reflectivity * (0.65 + 0.35 * cosine) + 0.03 * rng.standard_normal(len(cosine))
    return np.clip(noisy, 0, 0.99).round(2)
