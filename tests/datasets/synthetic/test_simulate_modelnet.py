"""Sampled shapes: uniform by area, true normals, ModelNet's layout."""

import logging
import math

import numpy as np
import pytest
from scipy.spatial import cKDTree

from pcdet.datasets import build_dataset
from pcdet.datasets.modelnet.modelnet_dataset import ModelNetDataset
from pcdet.datasets.synthetic import simulate_modelnet, simulate_shapenetpart
from pcdet.datasets.synthetic.shapes import PARTS, SHAPES, sample_shape, sample_shape_parts
from pcdet.datasets.synthetic.surfaces import box, cylinder, ellipsoid, lateral, ring, sample_surface, torus


def rng():
    return np.random.default_rng(0)


def test_a_box_by_hand():
    points = sample_surface(box((1, 2, 3), (2, 1, 4)), 20_000, rng())
    offset, normals = points[:, :3] - [1, 2, 3], points[:, 3:]
    assert np.abs(offset).max(axis=0) == pytest.approx([1, 0.5, 2])
    assert (offset * normals).sum(axis=1).min() >= 0.5  # outward
    shares = [np.abs(normals[:, axis]).mean() for axis in range(3)]
    assert shares == pytest.approx([8 / 28, 16 / 28, 4 / 28], abs=0.02)  # 4 x 1, 2 x 4, 2 x 1, twice each


@pytest.mark.parametrize(
    "patch, area",
    [
        (lateral((0, 0, 0), 1.0, 1.0, 2.0), 4 * math.pi),
        (lateral((0, 0, 0), 1.0, 0.0, 2.0), math.pi * math.sqrt(5)),
        (ring((0, 0, 0), 2.0, 1.0, 1.0), 3 * math.pi),
        (ellipsoid((0, 0, 0), (1, 1, 1)), 4 * math.pi),
        (torus((0, 0, 0), 2.0, 0.5), 4 * math.pi**2),
    ],
)
def test_areas_and_unit_normals(patch, area):
    assert patch.area == pytest.approx(area, rel=0.012)
    _, normals = patch.sample(500, rng())
    assert np.linalg.norm(normals, axis=1) == pytest.approx(np.ones(500))


def test_samples_are_uniform_by_area():
    cone, _ = lateral((0, 0, 0), 1.0, 0.0, 2.0).sample(20_000, rng())
    assert (cone[:, 1] < 0).mean() == pytest.approx(0.75, abs=0.02)  # the lower half of a cone's mantle
    doughnut, normals = torus((0, 0, 0), 2.0, 0.5).sample(20_000, rng())
    outer = np.hypot(doughnut[:, 0], doughnut[:, 2]) > 2.0
    assert outer.mean() == pytest.approx(0.5 + 0.5 / (math.pi * 2.0), abs=0.02)
    egg, _ = ellipsoid((0, 0, 0), (1, 1, 3)).sample(20_000, rng())
    around = math.asin(math.sqrt(8) / 3)  # of a prolate spheroid with axes 1 and 3, by integration
    total = 2 * math.pi * (1 + 3 / (math.sqrt(8) / 3) * around)
    band = (
        2 * math.pi * _integral(lambda z: math.sqrt(1 - z * z / 9) * math.sqrt(1 + z * z / 81 / (1 - z * z / 9)), 1.0)
    )
    assert (np.abs(egg[:, 2]) < 1.0).mean() == pytest.approx(2 * band / total, abs=0.02)


def _integral(f, end, steps=2000):
    return sum(f((i + 0.5) * end / steps) for i in range(steps)) * end / steps


def test_a_frustums_normals_are_perpendicular_to_its_mantle():
    points, normals = lateral((0, 0, 0), 1.0, 0.4, 2.0).sample(300, rng())
    along = np.stack([-0.6 * points[:, 0], np.full(300, 0.0), -0.6 * points[:, 2]], axis=1)
    along /= np.hypot(points[:, 0], points[:, 2])[:, None]
    along[:, 1] = 2.0
    assert (along * normals).sum(axis=1) == pytest.approx(np.zeros(300), abs=1e-12)
    assert len(cylinder((0, 0, 0), 1.0, 1.0)) == 3 and len(cylinder((0, 0, 0), 1.0, 1.0, top=0.0)) == 2


THIN = ("door", "fence", "keyboard", "ladder")  # neighbours may lie on the other side


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_points_with_fitting_normals(name):
    cloud = sample_shape(name, 1500, rng())
    assert cloud.shape == (1500, 6) and np.isfinite(cloud).all()
    assert np.linalg.norm(cloud[:, 3:], axis=1) == pytest.approx(np.ones(1500), abs=1e-5)
    # A point's nearest neighbours lie across its normal, except at edges.
    _, near = cKDTree(cloud[:, :3]).query(cloud[:, :3], k=6)
    steps = cloud[near[:, 1:], :3] - cloud[:, None, :3]
    slope = np.abs((steps * cloud[:, None, 3:]).sum(axis=2)) / np.linalg.norm(steps, axis=2)
    assert np.median(slope) < (0.45 if name in THIN else 0.25)


def test_the_layout_is_modelnets(tmp_path):
    out = simulate_modelnet(tmp_path / "shapes", 5, seed=3, points=64)
    assert len(SHAPES) == 40
    data = ModelNetDataset(
        class_names=list(SHAPES),
        training=True,
        seed=0,
        logger=logging.getLogger("pcdet"),
        data_path=str(out),
        variant="simulated",
        num_points=64,
        use_normals=True,
    )
    assert np.bincount(data.labels).tolist() == [4] * len(SHAPES)
    assert len((out / "simulated_test.txt").read_text().split()) == len(SHAPES)
    again = simulate_modelnet(tmp_path / "again", 3, seed=3, points=64, test_fraction=0.4)
    name = "table/table_0002.txt"
    assert (out / name).read_bytes() == (again / name).read_bytes()
    other = simulate_modelnet(tmp_path / "other", 3, seed=4, points=64, test_fraction=0.4)
    assert (out / name).read_bytes() != (other / name).read_bytes()
    with pytest.raises(ValueError, match="test fraction"):
        simulate_modelnet(tmp_path / "none", 2, test_fraction=0.1)


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_there_and_the_points_are_those_of_the_shape(name):
    cloud, part = sample_shape_parts(name, 600, rng())
    assert np.array_equal(cloud, sample_shape(name, 600, rng()))
    assert sorted(set(part.tolist())) == list(range(len(PARTS[name])))


def test_where_the_parts_of_a_chair_are():
    cloud, part = sample_shape_parts("chair", 3000, rng())
    legs, seat, back = (cloud[part == p, 1].mean() for p in range(3))
    assert legs < seat < back


def test_the_layout_is_shapenetparts(tmp_path):
    out = simulate_shapenetpart(tmp_path / "parts", 5, points=64)
    first, numbers = 0, {}
    for name, parts in PARTS.items():
        numbers[name] = list(range(first, first + len(parts)))
        first += len(parts)
    settings = {"DATASET": "ShapeNetPartDataset", "DATA_PATH": str(out), "PARTS": numbers, "NUM_POINTS": 64}
    train = build_dataset(settings, list(PARTS), training=True)
    assert np.bincount(train.pack.labels).tolist() == [3] * len(PARTS)
    sizes = [len(build_dataset({**settings, "EVAL_SPLIT": s}, list(PARTS), training=False)) for s in ("val", "test")]
    assert sizes == [len(PARTS)] * 2
    labels = np.concatenate([train[i]["point_labels"] for i in range(len(train))])
    assert np.unique(labels).tolist() == list(range(first))
