"""The ray caster against distances worked out by hand."""

import math

import numpy as np
import pytest

from pcdet.datasets.synthetic.cast import _meet, cast
from pcdet.datasets.synthetic.ground import Ground, draw_ground, ground_height, plane_in_front
from pcdet.datasets.synthetic.materials import INDEX
from pcdet.datasets.synthetic.objects import car
from pcdet.datasets.synthetic.primitives import BOX, CYLINDER, DISC, ELLIPSOID, FOLIAGE, Shape, assemble
from pcdet.datasets.synthetic.rig import calibration, plane_text
from pcdet.datasets.synthetic.sensor import COLUMNS, MOUNT_HEIGHT, scanner
from pcdet.datasets.synthetic.simulate import scan
from pcdet.datasets.synthetic.world import World

CHANCE = np.array([0.5])


def flat_ground(slope=0.0, kerb=0.0) -> Ground:
    return Ground(slope, 0.0, np.zeros((2, 4)), 0.0, 0.0, 0.0, 0.0, 5.0, kerb)


def nothing():
    return assemble([], np.zeros((0, 4)))


def wall(distance=10.0, height=4.0, width=8.0):
    shape = Shape()
    shape.box((0, 0, height / 2), (0.2, width, height), ("wall", 0.5))
    return shape, np.array([distance, 0.0, -MOUNT_HEIGHT, 0.0])


def test_flat_ground_lies_where_the_beam_comes_down():
    sensor = scanner()
    hits, own = cast(sensor, flat_ground(), nothing(), CHANCE)
    ring = 50
    expected = (MOUNT_HEIGHT + sensor.origin_z[ring]) / -sensor.sin_elevation[ring]
    assert hits.distance[ring] == pytest.approx(np.full(COLUMNS, expected), rel=1e-9)
    assert hits.cosine[ring, 0] == pytest.approx(-sensor.sin_elevation[ring])
    assert np.isinf(hits.distance[0]).all()  # 2 degrees upwards
    assert len(own) == 0


def test_rising_ground_is_met_earlier():
    sensor, slope = scanner(), 0.02
    hits, _ = cast(sensor, flat_ground(slope), nothing(), CHANCE)
    ring = 40  # straight ahead: z0 + r tan(e) = -1.73 + slope r
    radius = (MOUNT_HEIGHT + sensor.origin_z[ring]) / (slope - sensor.tan_elevation[ring])
    assert hits.distance[ring, 0] == pytest.approx(radius / sensor.cos_elevation[ring], rel=1e-9)


def test_land_beside_the_road_is_higher_by_the_kerb():
    ground = flat_ground(kerb=0.12)
    assert ground_height(ground, 3.0, 4.9)[0] == pytest.approx(-MOUNT_HEIGHT)
    assert ground_height(ground, 3.0, 5.04)[0] == pytest.approx(-MOUNT_HEIGHT + 0.06)
    assert ground_height(ground, 3.0, 7.0)[0] == pytest.approx(-MOUNT_HEIGHT + 0.12)
    hits, _ = cast(scanner(), ground, nothing(), CHANCE)
    materials = {int(m) for m in np.unique(hits.material[np.isfinite(hits.distance)])}
    assert materials == {INDEX["road"], INDEX["verge"]}


def test_a_wall_ahead_hides_the_ground_behind_it():
    sensor = scanner()
    shape, pose = wall()
    hits, own = cast(sensor, flat_ground(), assemble([shape], pose[None]), CHANCE)
    level = int(np.abs(sensor.tan_elevation).argmin())
    assert hits.distance[level, 0] == pytest.approx(9.9 / sensor.cos_elevation[level])
    assert hits.cosine[level, 0] == pytest.approx(sensor.cos_elevation[level])
    assert (hits.owner == 0).sum() == own[0] > 1000
    assert (hits.owner[:, COLUMNS // 2] == -1).all()  # the wall stands in front, not behind
    edge = math.degrees(math.atan2(4.0, 9.9)) / (360 / COLUMNS)
    assert hits.owner[level, math.floor(edge)] == 0
    assert hits.owner[level, math.ceil(edge) + 1] == -1


def test_what_stands_behind_a_wall_has_own_hits_but_is_not_seen():
    front, back = wall(10.0), wall(20.0, height=1.0, width=2.0)
    hits, own = cast(scanner(), flat_ground(), assemble([front[0], back[0]], np.stack([front[1], back[1]])), CHANCE)
    assert own[1] > 50
    assert (hits.owner == 1).sum() == 0


@pytest.mark.parametrize("heading", [0.0, 0.4, 1.2, math.pi / 2, 3.0])
def test_the_window_of_a_primitive_holds_all_its_rays(heading):
    """A window that is too small would cut hits off; testing every ray finds as many."""
    sensor = scanner()
    shape = Shape()
    shape.box((0, 0, 1.0), (4.0, 1.6, 1.5), ("paint", 0.5), taper=(0.2, 0.3, 0.1), pitch=0.3)
    shape.cylinder((1.0, 0.5, 2.5), 0.3, 1.8, ("metal", 0.5), pitch=0.8)
    primitives = assemble([shape], np.array([[7.0, -5.0, -MOUNT_HEIGHT, heading]]))
    _, own = cast(sensor, flat_ground(), primitives, CHANCE)
    assert own[0] == _brute_force(sensor, primitives)


def _brute_force(sensor, primitives) -> int:
    met = 0
    direction = np.stack(
        [
            sensor.cos_elevation[:, None] * sensor.cos_azimuth,
            sensor.cos_elevation[:, None] * sensor.sin_azimuth,
            np.broadcast_to(sensor.sin_elevation[:, None], sensor.shape),
        ],
        axis=-1,
    )
    forward = direction @ np.array([7.0, -5.0, 0.0]) > 0  # the other half cannot meet it
    for ring, column in np.argwhere(forward):
        origin = np.array([0.0, 0.0, sensor.origin_z[ring]])
        for m in range(len(primitives)):
            p = primitives.inverse[m] @ (origin - primitives.centre[m])
            u = primitives.inverse[m] @ direction[ring, column]
            if np.linalg.norm(np.cross(p, u)) > 2 * np.linalg.norm(u):
                continue  # passes the unit shape by more than its radius
            if 2.0 <= _meet(primitives.kind[m], *p, *u, primitives.parameter[m], 0.5)[0] <= 80.0:
                met += 1
                break
    return met


def meet(kind, origin, direction, parameter=(0.0, 0.0, 0.0), draw=0.5):
    return _meet(kind, *map(float, origin), *map(float, direction), np.array(parameter), draw)


def test_unit_shapes_are_met_where_they_should_be():
    assert meet(BOX, (-3, 0.5, 0), (1, 0, 0)) == (2.0, -1.0, 0.0, 0.0)
    assert meet(BOX, (-3, 1.5, 0), (1, 0, 0))[0] == math.inf
    assert meet(BOX, (-3, 0, 0), (1, 0, 0), (0.0, 0.4, 0.0))[0] == pytest.approx(2.2)  # half of 0.4 at half height
    assert meet(ELLIPSOID, (-3, 0, 0), (1, 0, 0))[:2] == (2.0, -1.0)
    assert meet(ELLIPSOID, (-3, 0, 1.1), (1, 0, 0))[0] == math.inf
    assert meet(CYLINDER, (-3, 0, 0.9), (1, 0, 0))[:2] == (2.0, -1.0)
    assert meet(CYLINDER, (0.5, 0, 4), (0, 0, -1)) == (3.0, 0.0, 0.0, 1.0)
    assert meet(CYLINDER, (-3, 0, 1.1), (1, 0, 0))[0] == math.inf
    assert meet(DISC, (0.9, -2, 0), (0, 1, 0), (0.5, 0, 0)) == (2.0, 0.0, 1.0, 0.0)
    assert meet(DISC, (0.4, -2, 0), (0, 1, 0), (0.5, 0, 0))[0] == math.inf


def test_a_pulse_goes_into_foliage_as_deep_as_the_draw_says():
    density = (2.0, 0.0, 0.0)
    assert meet(FOLIAGE, (-3, 0, 0), (1, 0, 0), density, draw=1.0)[0] == pytest.approx(2.0)
    assert meet(FOLIAGE, (-3, 0, 0), (1, 0, 0), density, draw=math.exp(-2.0))[0] == pytest.approx(3.0)
    assert meet(FOLIAGE, (-3, 0, 0), (1, 0, 0), density, draw=math.exp(-4.1))[0] == math.inf  # comes out behind


def test_a_shape_is_turned_then_moved():
    shape = Shape()
    shape.box((1.0, 0.0, 0.5), (2.0, 1.0, 1.0), ("paint", 0.3))
    placed = assemble([shape], np.array([[10.0, 5.0, -1.0, math.pi / 2]]))
    assert placed.centre[0] == pytest.approx([10.0, 6.0, -0.5])
    assert placed.inverse[0] @ np.array([0.0, 1.0, 0.0]) == pytest.approx([1.0, 0.0, 0.0], abs=1e-12)  # its front


def test_the_road_plane_passes_through_the_ground():
    ground, calib = draw_ground(np.random.default_rng(3)), calibration()
    a, b, c, d = plane_in_front(ground)
    assert a * a + b * b + c * c == pytest.approx(1.0) and c > 0.9
    numbers = np.array([float(v) for v in plane_text(ground, calib).splitlines()[3].split()])
    for x, y in ((8.0, 0.0), (25.0, -4.0), (45.0, 6.0)):
        z = -(a * x + b * y + d) / c
        assert abs(z - ground_height(ground, x, y)[0]) < 0.3
        rect = calib.lidar_to_rect(np.array([[x, y, z]], dtype=np.float32))[0]
        assert numbers[:3] @ rect + numbers[3] == pytest.approx(0.0, abs=1e-4)
    assert numbers[1] < -0.9  # up is -y in the camera's frame


@pytest.mark.parametrize("hidden", [False, True])
def test_a_car_alone_is_not_occluded_and_behind_a_wall_it_is(hidden):
    model = car(np.random.default_rng(0))
    screen, screen_pose = wall(distance=12.0, height=0.9, width=3.0)
    shapes = [model.shape, *([screen] if hidden else [])]
    poses = np.stack([np.array([20.0, 0, -MOUNT_HEIGHT, 0.0]), *([screen_pose] if hidden else [])])
    box = np.array([20.0, 0, -MOUNT_HEIGHT + model.size[2] / 2, *model.size, 0.0])
    boxes = np.stack([box, np.zeros(7)])[: len(shapes)]
    world = World(flat_ground(), assemble(shapes, poses), ("Car", "")[: len(shapes)], boxes)
    (label,) = scan(world, np.random.default_rng(0)).labels
    assert label.occluded == 0 if not hidden else label.occluded in (1, 2)
