"""The levels of the LiDAR-frame metric: all objects, and parts of them by distance or by points in the box."""

from collections.abc import Sequence
from typing import NamedTuple


class Band(NamedTuple):
    """Objects whose ``kind`` lies in [low, high)."""

    name: str
    kind: str  # "all", "distance" (metres in the ground plane) or "points"
    low: float = 0.0
    high: float = float("inf")


def make_bands(distance_borders: Sequence[float] = (), point_borders: Sequence[int] = ()) -> tuple[Band, ...]:
    """``all``, then one band below, between and above the borders: 30, 50 give 0-30m, 30-50m, 50+m.

    Raises ``ValueError`` unless borders are positive and rise.
    """
    bands = [Band("all", "all")]
    for kind, borders in (("distance", distance_borders), ("points", point_borders)):
        if any(low >= high for low, high in zip((0, *borders), borders, strict=False)):
            raise ValueError(f"the borders of bands by {kind} are {list(borders)}; they must be positive and rise")
        for low, high in zip((0, *borders), (*borders, float("inf")), strict=True) if borders else ():
            bands.append(Band(_name(kind, low, high), kind, low, high))
    return tuple(bands)


def _name(kind: str, low: float, high: float) -> str:
    unit, last = ("m", high) if kind == "distance" else ("pts", high - 1)
    return f"{low:g}+{unit}" if high == float("inf") else f"{low:g}-{last:g}{unit}"
