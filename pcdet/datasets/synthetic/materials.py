"""What surfaces are made of: how strongly, how roughly and how reliably they return a laser pulse."""

from typing import NamedTuple

import numpy as np


class Material(NamedTuple):
    """Properties of one kind of surface."""

    name: str
    low: float  # reflectivity of a single object is drawn between low and high
    high: float
    roughness: float  # metres, added to the range noise
    dropout: float  # probability that a return is lost


MATERIALS = (
    Material("road", 0.26, 0.36, 0.006, 0.0),
    Material("verge", 0.24, 0.46, 0.020, 0.0),
    Material("paint", 0.18, 0.65, 0.0, 0.0),
    Material("dark_paint", 0.04, 0.12, 0.0, 0.10),
    Material("glass", 0.02, 0.08, 0.0, 0.50),
    Material("tyre", 0.05, 0.12, 0.0, 0.02),
    Material("retro", 0.95, 1.30, 0.0, 0.0),
    Material("cloth", 0.10, 0.55, 0.010, 0.01),
    Material("skin", 0.30, 0.50, 0.005, 0.01),
    Material("metal", 0.20, 0.50, 0.0, 0.02),
    Material("wall", 0.20, 0.50, 0.004, 0.0),
    Material("foliage", 0.10, 0.45, 0.030, 0.02),
)
INDEX = {material.name: i for i, material in enumerate(MATERIALS)}
ROUGHNESS = np.array([m.roughness for m in MATERIALS])
DROPOUT = np.array([m.dropout for m in MATERIALS])
# Car bodies are smooth: far away most of the pulse is mirrored off.
MIRRORS = np.isin([m.name for m in MATERIALS], ["paint", "dark_paint", "glass"])


def draw_reflectivity(name: str, rng: np.random.Generator) -> float:
    """Reflectivity of one object made of the named material."""
    material = MATERIALS[INDEX[name]]
    return float(rng.uniform(material.low, material.high))
