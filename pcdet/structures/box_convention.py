"""How other tools write a 3-D box in the LiDAR frame, and the converter to this project's boxes."""

from dataclasses import dataclass

import numpy as np

from pcdet.structures.boxes import wrap_angle

ORIGINS = ("center", "bottom")
ORDERS = ("lwh", "lhw", "wlh", "whl", "hlw", "hwl")
UNITS = ("rad", "deg")
ZEROS = ("x", "y", "-x", "-y")


@dataclass(frozen=True)
class BoxConvention:
    """Seven numbers a box: x y z, three sizes, heading. The default is this project's own convention.

    Raises ``ValueError`` naming the option for another value than those listed.
    """

    origin: str = "center"  # what x y z is: the geometric centre, or the centre of the bottom
    clockwise: bool = False  # does the heading grow clockwise, seen from above?
    order: str = "lwh"  # the order of length (along the heading), width and height
    unit: str = "rad"  # of the heading
    zero: str = "x"  # the axis along which a heading of 0 looks

    def __post_init__(self):
        for key, allowed in (("origin", ORIGINS), ("order", ORDERS), ("unit", UNITS), ("zero", ZEROS)):
            if getattr(self, key) not in allowed:
                raise ValueError(f"BOX_CONVENTION.{key} is {getattr(self, key)!r}; it may be {', '.join(allowed)}")

    def to_lidar(self, boxes: np.ndarray) -> np.ndarray:
        """(M, 7) boxes of this convention -> (M, 7) LiDAR boxes, float64, headings in [-pi, pi)."""
        out = np.array(boxes, dtype=np.float64).reshape(-1, 7)
        out[:, 3:6] = out[:, [3 + self.order.index(side) for side in "lwh"]]
        if self.origin == "bottom":
            out[:, 2] += out[:, 5] / 2
        turn = np.deg2rad(out[:, 6]) if self.unit == "deg" else out[:, 6]
        out[:, 6] = wrap_angle((-turn if self.clockwise else turn) + self._offset)
        return out

    def from_lidar(self, boxes: np.ndarray) -> np.ndarray:
        """(M, 7) LiDAR boxes -> (M, 7) boxes of this convention, float64, headings within half a turn of 0."""
        out = np.array(boxes, dtype=np.float64).reshape(-1, 7)
        if self.origin == "bottom":
            out[:, 2] -= out[:, 5] / 2
        turn = wrap_angle(out[:, 6] - self._offset)
        turn = -turn if self.clockwise else turn
        out[:, 6] = np.rad2deg(turn) if self.unit == "deg" else turn
        out[:, 3:6] = out[:, ["lwh".index(side) + 3 for side in self.order]]
        return out

    @property
    def _offset(self) -> float:
        return ZEROS.index(self.zero) * np.pi / 2
