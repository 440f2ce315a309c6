"""Random street scenes: who and what stands where."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pcdet.datasets.synthetic import objects
from pcdet.datasets.synthetic.ground import Ground, draw_ground, ground_height
from pcdet.datasets.synthetic.objects import Model
from pcdet.datasets.synthetic.primitives import Primitives, assemble

_ALONG = (-45.0, 78.0)  # metres of road that are furnished
_EGO_CLEARANCE = 4.0  # metres around the sensor that stay free
_LANE_CLEARANCE = 0.25  # metres between two things


class World(NamedTuple):
    """A scene: the ground, the primitives on it and, row for row, the objects they belong to."""

    ground: Ground
    primitives: Primitives
    names: tuple[str, ...]  # (M,) KITTI class of each object, empty for unlabelled things
    boxes: np.ndarray  # (M, 7) x y z dx dy dz heading, LiDAR frame, geometric centre


def draw_world(rng: np.random.Generator) -> World:
    """A random street: traffic, parked rows, people, and what lines the road."""
    builder = _Builder(draw_ground(rng), rng)
    _add_traffic(builder)
    _add_parked(builder)
    _add_people(builder)
    _add_facades(builder)
    _add_furniture(builder)
    return builder.world()


@dataclass
class _Builder:
    """Collects what has been placed so far; nothing may overlap."""

    ground: Ground
    rng: np.random.Generator
    models: list[Model] = field(default_factory=list)
    poses: list[tuple[float, float, float, float]] = field(default_factory=list)  # x y z heading
    circles: list[np.ndarray] = field(default_factory=list)  # (n, 3) x y radius: each object's footprint

    def place(self, model: Model, along: float, lateral: float, turn: float = 0.0) -> bool:
        """Put a model beside the road's centre line if there is room; ``turn`` is relative to the road."""
        centre, bearing = self.ground.centre_line(along)
        x, y = along - lateral * math.sin(bearing), centre + lateral * math.cos(bearing)
        heading = bearing + turn
        circles = _footprint(model.size, x, y, heading)
        if np.any(np.hypot(circles[:, 0], circles[:, 1]) < circles[:, 2] + _EGO_CLEARANCE):
            return False
        if self.circles:
            placed = np.concatenate(self.circles)
            gap = np.hypot(circles[:, None, 0] - placed[None, :, 0], circles[:, None, 1] - placed[None, :, 1])
            if np.any(gap < circles[:, None, 2] + placed[None, :, 2] + _LANE_CLEARANCE):
                return False
        self.circles.append(circles)
        self.models.append(model)
        self.poses.append((x, y, self._standing_height(model.size, x, y, heading), heading))
        return True

    def _standing_height(self, size, x: float, y: float, heading: float) -> float:
        """The highest ground below the box, so that it does not reach into the ground."""
        cos, sin = math.cos(heading), math.sin(heading)
        heights = []
        for u in (-0.5, 0.0, 0.5):
            for v in (-0.5, 0.0, 0.5):
                dx, dy = u * size[0], v * size[1]
                heights.append(ground_height(self.ground, x + cos * dx - sin * dy, y + sin * dx + cos * dy)[0])
        return max(heights) + 0.01

    def world(self) -> World:
        poses = np.array(self.poses).reshape(-1, 4)
        sizes = np.array([model.size for model in self.models]).reshape(-1, 3)
        boxes = np.concatenate([poses[:, :3], sizes, poses[:, 3:]], axis=1)
        boxes[:, 2] += sizes[:, 2] / 2
        primitives = assemble([model.shape for model in self.models], poses)
        return World(self.ground, primitives, tuple(model.name for model in self.models), boxes)


def _footprint(size: tuple[float, float, float], x: float, y: float, heading: float) -> np.ndarray:
    """(n, 3) circles x y radius along the longer side that cover an object's rectangle."""
    long, short = max(size[0], size[1]), min(size[0], size[1])
    count = max(1, math.ceil(long / short))
    part = long / count
    offsets = (np.arange(count) - (count - 1) / 2) * part
    if size[1] > size[0]:
        heading += math.pi / 2
    radius = math.hypot(part, short) / 2
    return np.stack([x + offsets * math.cos(heading), y + offsets * math.sin(heading), np.full(count, radius)], axis=1)


def _vehicle(rng: np.random.Generator) -> Model:
    return objects.van(rng) if rng.random() < 0.11 else objects.car(rng)


def _either_way(rng: np.random.Generator) -> float:
    return math.pi * float(rng.integers(2))


def _add_traffic(builder: _Builder) -> None:
    rng, half_width = builder.rng, builder.ground.half_width
    for _ in range(rng.integers(1, 7)):
        side = rng.choice([-1.0, 1.0])
        lateral = side * (0.45 * half_width + rng.normal(0, 0.25))
        turn = (0.0 if side < 0 else math.pi) + rng.normal(0, 0.05)
        builder.place(_vehicle(rng), rng.uniform(*_ALONG), lateral, turn)
    if rng.random() < 0.4:  # someone crosses or turns
        builder.place(_vehicle(rng), rng.uniform(8, 55), rng.normal(0, 2.0), rng.uniform(-math.pi, math.pi))


def _add_parked(builder: _Builder) -> None:
    rng, half_width = builder.rng, builder.ground.half_width
    for side in (-1.0, 1.0):
        if rng.random() < 0.2:
            continue
        across = rng.random() < 0.25  # parked at an angle off the road instead of along it
        lateral = side * (half_width + rng.uniform(2.6, 3.4)) if across else side * (half_width - rng.uniform(0.9, 1.2))
        slot = rng.uniform(2.7, 3.4) if across else rng.uniform(5.0, 8.5)
        occupancy = rng.uniform(0.1, 0.5 if across else 0.8)
        angle = rng.choice([math.pi / 2, math.pi / 3]) if across else 0.0
        for along in np.arange(*_ALONG, slot):
            if rng.random() < occupancy:
                turn = angle + _either_way(rng) + rng.normal(0, 0.03)
                builder.place(_vehicle(rng), along + rng.normal(0, 0.2), lateral + rng.normal(0, 0.1), turn)


def _add_people(builder: _Builder) -> None:
    rng, half_width = builder.rng, builder.ground.half_width
    for _ in range(rng.poisson(6)):
        lateral = rng.choice([-1.0, 1.0]) * (half_width + rng.uniform(-0.5, 3.5))
        if rng.random() < 0.15:  # crossing the road
            lateral = rng.uniform(-half_width, half_width)
        builder.place(objects.pedestrian(rng), rng.uniform(-15, 50), lateral, rng.uniform(-math.pi, math.pi))
    for _ in range(rng.poisson(3)):
        lateral = rng.choice([-1.0, 1.0]) * (half_width + rng.uniform(-2.2, 0.8))
        turn = _either_way(rng) + rng.normal(0, 0.15)
        builder.place(objects.cyclist(rng), rng.uniform(-15, 60), lateral, turn)


def _add_facades(builder: _Builder) -> None:
    rng, half_width = builder.rng, builder.ground.half_width
    for side in (-1.0, 1.0):
        lateral = half_width + rng.uniform(4.5, 14.0)
        height = rng.choice([rng.uniform(0.8, 2.0), rng.uniform(3.5, 9.0)])
        length = 6.0
        present = rng.uniform(0.2, 0.9)
        for along in np.arange(*_ALONG, length + 0.3):
            if rng.random() < present:
                builder.place(objects.wall(rng, length, height), along, side * (lateral + rng.normal(0, 0.15)))


def _add_furniture(builder: _Builder) -> None:
    rng, half_width = builder.rng, builder.ground.half_width
    wanted = (
        (objects.pole, rng.poisson(8), 0.4, 1.5),
        (objects.tree, rng.poisson(12), 1.0, 12.0),
        (objects.bush, rng.poisson(22), 1.5, 12.0),
        (objects.bin_or_box, rng.poisson(4), 0.6, 5.0),
    )
    for make, count, near, far in wanted:
        for _ in range(count):
            lateral = rng.choice([-1.0, 1.0]) * (half_width + rng.uniform(near, far))
            builder.place(make(rng), rng.uniform(*_ALONG), lateral, rng.uniform(-math.pi, math.pi))
