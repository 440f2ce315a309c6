"""Solid primitives of which everything but the ground is built."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pcdet.datasets.synthetic.materials import INDEX

BOX, ELLIPSOID, CYLINDER, DISC, FOLIAGE = range(5)


class Primitives(NamedTuple):
    """M primitives as arrays, in the LiDAR frame. ``inverse`` maps an offset from the centre into the unit shape.

    Unit shapes: the cube [-1, 1]^3 (tapered towards +z), the ball, the upright cylinder of radius 1 between z = -1
    and 1, and the flat ring in the plane y = 0 of outer radius 1. Foliage is a ball that is hit somewhere inside.
    """

    kind: np.ndarray  # (M,) int64, one of the constants above
    centre: np.ndarray  # (M, 3) metres
    inverse: np.ndarray  # (M, 3, 3)
    half: np.ndarray  # (M, 3) half sizes in metres along the primitive's own axes
    parameter: np.ndarray  # (M, 3) box: taper of front, rear and sides at the top; disc: inner radius; foliage: density
    material: np.ndarray  # (M,) int64
    reflectivity: np.ndarray  # (M,)
    owner: np.ndarray  # (M,) int64, non-decreasing; the object it belongs to

    def __len__(self) -> int:  # the number of primitives rather than of fields
        return self.kind.shape[0]


@dataclass
class Shape:
    """Primitives of one object in its own frame: x forward, y left, z up from the ground below its centre."""

    rows: list[tuple] = field(default_factory=list)  # kind, centre, half, pitch, yaw, parameter, material, reflectivity

    def _add(self, kind, centre, half, surface, pitch=0.0, yaw=0.0, parameter=(0.0, 0.0, 0.0)) -> None:
        material, reflectivity = surface
        self.rows.append((kind, centre, half, pitch, yaw, parameter, INDEX[material], reflectivity))

    def box(self, centre, size, surface, taper=(0.0, 0.0, 0.0), yaw=0.0, pitch=0.0) -> None:
        """Box of full ``size``; ``taper`` is how far front, rear and sides lean in at the top, in half sizes."""
        self._add(BOX, centre, [s / 2 for s in size], surface, pitch, yaw, taper)

    def ellipsoid(self, centre, half, surface, pitch=0.0) -> None:
        self._add(ELLIPSOID, centre, half, surface, pitch)

    def cylinder(self, centre, radius, height, surface, pitch=0.0) -> None:
        """Cylinder along z, leaning forward by ``pitch`` radians."""
        self._add(CYLINDER, centre, (radius, radius, height / 2), surface, pitch)

    def disc(self, centre, radius, inner, surface) -> None:
        """Flat ring that faces sideways; ``inner`` is the hole's radius in units of ``radius``."""
        self._add(DISC, centre, (radius, 0.02, radius), surface, parameter=(inner, 0.0, 0.0))

    def foliage(self, centre, half, surface, density) -> None:
        """Ellipsoid of leaves; a pulse travels ``1 / density`` metres in it on average."""
        self._add(FOLIAGE, centre, half, surface, parameter=(density, 0.0, 0.0))


def assemble(shapes: list[Shape], poses: np.ndarray) -> Primitives:
    """Put shapes at their poses: (M, 4) x y z of the ground point and heading, LiDAR frame."""
    rows = [row for shape in shapes for row in shape.rows]
    owner = np.repeat(np.arange(len(shapes)), [len(shape.rows) for shape in shapes])
    kind, centre, half, pitch, yaw, parameter, material, reflectivity = (
        np.array(column) for column in (zip(*rows, strict=True) if rows else [()] * 8)
    )
    pose = poses.reshape(-1, 4)[owner]
    heading = pose[:, 3]
    centre = centre.reshape(-1, 3).astype(np.float64)
    half = half.reshape(-1, 3).astype(np.float64)
    moved = np.stack(
        [
            pose[:, 0] + np.cos(heading) * centre[:, 0] - np.sin(heading) * centre[:, 1],
            pose[:, 1] + np.sin(heading) * centre[:, 0] + np.cos(heading) * centre[:, 1],
            pose[:, 2] + centre[:, 2],
        ],
        axis=1,
    )
    rotation = _rotations(heading + yaw, pitch)  # own axes -> LiDAR frame
    inverse = np.ascontiguousarray(rotation.transpose(0, 2, 1) / half[:, :, None])
    return Primitives(
        kind.astype(np.int64),
        moved,
        inverse,
        half,
        parameter.reshape(-1, 3).astype(np.float64),
        material.astype(np.int64),
        reflectivity.astype(np.float64),
        owner.astype(np.int64),
    )


def _rotations(yaw: np.ndarray, pitch: np.ndarray) -> np.ndarray:
    """(M,) angles -> (M, 3, 3): lean forward about y by ``pitch``, then turn about z by ``yaw``."""
    yaw, pitch = np.asarray(yaw, dtype=np.float64), np.asarray(pitch, dtype=np.float64)
    cy, sy, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
    zero = np.zeros_like(cy)
    rows = [cy * cp, -sy, cy * sp, sy * cp, cy, sy * sp, -sp, zero, cp]
    return np.stack(rows, axis=1).reshape(-1, 3, 3)
