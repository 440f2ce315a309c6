"""Ray casting: which surface each pulse meets first.

The ground is met by walking outwards along every azimuth once, for all rings together. A primitive is only tested
against the rays inside the window of rings and columns that its bounding box spans; a range buffer keeps the nearest.
"""

import math
from typing import NamedTuple

import numba
import numpy as np

from pcdet.datasets.synthetic.ground import Ground, ground_height
from pcdet.datasets.synthetic.materials import INDEX
from pcdet.datasets.synthetic.primitives import BOX, CYLINDER, DISC, ELLIPSOID, FOLIAGE, Primitives
from pcdet.datasets.synthetic.sensor import MAX_RANGE, MIN_RANGE, Sensor

_ROAD, _VERGE = INDEX["road"], INDEX["verge"]
_FIRST_STEP, _STEP_RATIO = 1.5, 1.03  # radii in metres at which the ground is sampled: 1.5, 1.5 * 1.03, ...
_MISS = np.inf


class Hits(NamedTuple):
    """What each ray meets first; R rings, W columns."""

    distance: np.ndarray  # (R, W) metres along the ray, inf where it meets nothing
    cosine: np.ndarray  # (R, W) of the angle of incidence
    material: np.ndarray  # (R, W) int64
    reflectivity: np.ndarray  # (R, W); of the ground NaN: it is drawn from the material
    owner: np.ndarray  # (R, W) index of the object, -1 for the ground


def cast(sensor: Sensor, ground: Ground, primitives: Primitives, chance: np.ndarray) -> tuple[Hits, np.ndarray]:
    """Cast every ray. Also returns (objects,) how many rays would meet each object if it stood alone.

    Args:
        sensor: the scanner.
        ground: the ground.
        primitives: M primitives, sorted by owner.
        chance: 1-D array of uniform numbers in (0, 1], which decide how deep pulses go into foliage.
    """
    shape = sensor.shape
    hits = Hits(
        np.full(shape, _MISS),
        np.zeros(shape),
        np.zeros(shape, dtype=np.int64),
        np.full(shape, np.nan),
        np.full(shape, -1, dtype=np.int64),
    )
    _cast_ground(sensor, ground, hits)
    objects = int(primitives.owner.max()) + 1 if len(primitives) else 0
    own_hits = np.zeros(objects, dtype=np.int64)
    _cast_primitives(sensor, primitives, chance, hits, np.full(shape, -1, dtype=np.int64), own_hits)
    return hits, own_hits


@numba.njit(nogil=True, cache=True)
def _cast_ground(sensor, ground, hits):
    rings = sensor.tan_elevation.shape[0]
    for column in range(sensor.cos_azimuth.shape[0]):
        cos_a, sin_a = sensor.cos_azimuth[column], sensor.sin_azimuth[column]
        ring = rings - 1  # the steepest ray comes down first; the others follow in order
        near = _FIRST_STEP
        near_z, _ = ground_height(ground, near * cos_a, near * sin_a)
        while ring >= 0 and near < MAX_RANGE:
            far = near * _STEP_RATIO
            far_z, beyond = ground_height(ground, far * cos_a, far * sin_a)
            rise = (far_z - near_z) / (far - near)
            while ring >= 0:
                tan = sensor.tan_elevation[ring]
                gap = sensor.origin_z[ring] + far * tan - far_z
                if gap > 0:
                    break
                radius = max(near, far + gap / (rise - tan)) if rise != tan else near
                _hit_ground(hits, ring, column, radius / sensor.cos_elevation[ring], rise, sensor, beyond)
                ring -= 1
            near, near_z = far, far_z


@numba.njit(nogil=True, cache=True)
def _hit_ground(hits, ring, column, distance, rise, sensor, beyond):
    if distance < MIN_RANGE or distance > MAX_RANGE:
        return
    hits.distance[ring, column] = distance
    descent = rise * sensor.cos_elevation[ring] - sensor.sin_elevation[ring]
    hits.cosine[ring, column] = min(1.0, max(0.0, descent / math.sqrt(1 + rise * rise)))
    hits.material[ring, column] = _ROAD if beyond < 0 else _VERGE


@numba.njit(nogil=True, cache=True)
def _cast_primitives(sensor, primitives, chance, hits, stamp, own_hits):
    width = sensor.cos_azimuth.shape[0]
    for m in range(primitives.kind.shape[0]):
        first_ring, last_ring, first_column, columns = _window(sensor, primitives, m)
        for ring in range(first_ring, last_ring + 1):
            for k in range(columns):
                column = (first_column + k) % width
                draw = chance[(ring * width + column + 7919 * m) % chance.shape[0]]
                _cast_ray(sensor, primitives, m, ring, column, draw, hits, stamp, own_hits)


@numba.njit(nogil=True, cache=True)
def _cast_ray(sensor, primitives, m, ring, column, draw, hits, stamp, own_hits):
    """Test one ray against primitive ``m``; ``stamp`` remembers the last object that each ray met."""
    centre, inverse, owner = primitives.centre[m], primitives.inverse[m], primitives.owner[m]
    cos_e = sensor.cos_elevation[ring]
    dx, dy, dz = cos_e * sensor.cos_azimuth[column], cos_e * sensor.sin_azimuth[column], sensor.sin_elevation[ring]
    px, py, pz = _multiply(inverse, -centre[0], -centre[1], sensor.origin_z[ring] - centre[2])
    ux, uy, uz = _multiply(inverse, dx, dy, dz)
    parameter = primitives.parameter[m]
    distance, nx, ny, nz = _meet(primitives.kind[m], px, py, pz, ux, uy, uz, parameter, draw)
    if distance < MIN_RANGE or distance > MAX_RANGE:
        return
    if stamp[ring, column] != owner:
        stamp[ring, column] = owner
        own_hits[owner] += 1
    if distance < hits.distance[ring, column]:
        hits.distance[ring, column] = distance
        hits.cosine[ring, column] = _incidence(inverse, nx, ny, nz, dx, dy, dz)
        hits.material[ring, column] = primitives.material[m]
        hits.reflectivity[ring, column] = primitives.reflectivity[m]
        hits.owner[ring, column] = owner


@numba.njit(nogil=True, cache=True)
def _multiply(matrix, x, y, z):
    return (
        matrix[0, 0] * x + matrix[0, 1] * y + matrix[0, 2] * z,
        matrix[1, 0] * x + matrix[1, 1] * y + matrix[1, 2] * z,
        matrix[2, 0] * x + matrix[2, 1] * y + matrix[2, 2] * z,
    )


@numba.njit(nogil=True, cache=True)
def _incidence(inverse, nx, ny, nz, dx, dy, dz):
    """|cos| between a ray and the surface normal that is (nx, ny, nz) in the unit shape."""
    wx = inverse[0, 0] * nx + inverse[1, 0] * ny + inverse[2, 0] * nz
    wy = inverse[0, 1] * nx + inverse[1, 1] * ny + inverse[2, 1] * nz
    wz = inverse[0, 2] * nx + inverse[1, 2] * ny + inverse[2, 2] * nz
    norm = math.sqrt(wx * wx + wy * wy + wz * wz)
    return abs(wx * dx + wy * dy + wz * dz) / norm if norm > 0 else 1.0


@numba.njit(nogil=True, cache=True)
def _window(sensor, primitives, m):
    """First and last ring, first column and number of columns that can meet primitive ``m``."""
    centre, half = primitives.centre[m], primitives.half[m]
    inverse = primitives.inverse[m]
    # The rows of the inverse times the squared half sizes are the box's half axes in the LiDAR frame.
    ex = ey = ez = 0.0
    for i in range(3):
        scale = half[i] * half[i]
        ex += abs(inverse[i, 0] * scale)
        ey += abs(inverse[i, 1] * scale)
        ez += abs(inverse[i, 2] * scale)
    distance = math.hypot(centre[0], centre[1])
    radius = math.hypot(ex, ey)
    nearest = max(distance - radius, 0.3)
    first_column, columns = _columns(sensor, centre, inverse, half, distance, radius)
    top, bottom = centre[2] + ez, centre[2] - ez
    first_ring, last_ring = sensor.tan_elevation.shape[0], -1
    for ring in range(sensor.tan_elevation.shape[0]):
        tan, z = sensor.tan_elevation[ring], sensor.origin_z[ring]
        low = z + min(tan * nearest, tan * (distance + radius))
        high = z + max(tan * nearest, tan * (distance + radius))
        if low <= top and high >= bottom:
            first_ring = min(first_ring, ring)
            last_ring = ring
    return first_ring, last_ring, first_column, columns


@numba.njit(nogil=True, cache=True)
def _columns(sensor, centre, inverse, half, distance, radius):
    """First column and number of columns spanned by the corners of a primitive's bounding box."""
    width = sensor.cos_azimuth.shape[0]
    if distance <= radius:
        return 0, width
    middle = math.atan2(centre[1], centre[0])
    cos_m, sin_m = math.cos(middle), math.sin(middle)
    low, high = 0.0, 0.0
    for corner in range(8):
        x, y = centre[0], centre[1]
        for i in range(3):
            scale = half[i] * half[i] * (1.0 if corner >> i & 1 else -1.0)
            x += inverse[i, 0] * scale
            y += inverse[i, 1] * scale
        angle = math.atan2(cos_m * y - sin_m * x, cos_m * x + sin_m * y)
        low, high = min(low, angle), max(high, angle)
    step = 2 * math.pi / width
    first = math.floor((middle + low) / step)
    last = math.ceil((middle + high) / step)
    return first % width, min(width, last - first + 1)


@numba.njit(nogil=True, cache=True)
def _meet(kind, px, py, pz, ux, uy, uz, parameter, draw):
    """Distance to the unit shape along p + t u, and the normal there; infinity for a miss."""
    if kind == BOX:
        return _meet_box(px, py, pz, ux, uy, uz, parameter)
    if kind == ELLIPSOID:
        distance, _ = _sphere_roots(px, py, pz, ux, uy, uz)
        return distance, px + distance * ux, py + distance * uy, pz + distance * uz
    if kind == CYLINDER:
        return _meet_cylinder(px, py, pz, ux, uy, uz)
    if kind == DISC:
        return _meet_disc(px, py, pz, ux, uy, uz, parameter[0])
    assert kind == FOLIAGE
    entry, leave = _sphere_roots(px, py, pz, ux, uy, uz)
    depth = -math.log(draw) / parameter[0]
    if entry + depth >= leave:
        return _MISS, 0.0, 0.0, 1.0
    return entry + depth, 0.0, 0.0, 0.0


@numba.njit(nogil=True, cache=True)
def _sphere_roots(px, py, pz, ux, uy, uz):
    """Where a line enters and leaves the unit ball; (inf, inf) for a miss."""
    a = ux * ux + uy * uy + uz * uz
    b = px * ux + py * uy + pz * uz
    c = px * px + py * py + pz * pz - 1
    under = b * b - a * c
    if under < 0:
        return _MISS, _MISS
    root = math.sqrt(under)
    return (-b - root) / a, (-b + root) / a


@numba.njit(nogil=True, cache=True)
def _meet_box(px, py, pz, ux, uy, uz, taper):
    """Six planes n . p <= d: the sides lean in towards the top by their taper."""
    entry, leave = -_MISS, _MISS
    nx = ny = nz = 0.0
    for face in range(6):
        x = 1.0 if face == 0 else (-1.0 if face == 1 else 0.0)
        y = 1.0 if face == 2 else (-1.0 if face == 3 else 0.0)
        lean = taper[min(face, 2)] / 2 if face < 4 else 0.0
        z = lean if face < 4 else (1.0 if face == 4 else -1.0)
        speed = x * ux + y * uy + z * uz
        gap = 1.0 - lean - (x * px + y * py + z * pz)
        if speed < 0:
            if gap / speed > entry:
                entry, nx, ny, nz = gap / speed, x, y, z
        elif speed > 0:
            leave = min(leave, gap / speed)
        elif gap < 0:
            return _MISS, 0.0, 0.0, 1.0
    if entry > leave:
        return _MISS, 0.0, 0.0, 1.0
    return entry, nx, ny, nz


@numba.njit(nogil=True, cache=True)
def _meet_cylinder(px, py, pz, ux, uy, uz):
    """The mantle, then whichever cap the line comes through."""
    a = ux * ux + uy * uy
    b = px * ux + py * uy
    under = b * b - a * (px * px + py * py - 1)
    if a > 0 and under >= 0:
        distance = (-b - math.sqrt(under)) / a
        if abs(pz + distance * uz) <= 1:
            return distance, px + distance * ux, py + distance * uy, 0.0
    if uz != 0:
        cap = -1.0 if uz > 0 else 1.0
        distance = (cap - pz) / uz
        if (px + distance * ux) ** 2 + (py + distance * uy) ** 2 <= 1:
            return distance, 0.0, 0.0, cap
    return _MISS, 0.0, 0.0, 1.0


@numba.njit(nogil=True, cache=True)
def _meet_disc(px, py, pz, ux, uy, uz, inner):
    if uy == 0:
        return _MISS, 0.0, 0.0, 1.0
    distance = -py / uy
    square = (px + distance * ux) ** 2 + (pz + distance * uz) ** 2
    if square > 1 or square < inner * inner:
        return _MISS, 0.0, 0.0, 1.0
    return distance, 0.0, 1.0, 0.0
