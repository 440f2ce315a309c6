"""Labelled clouds of varying size from one NPZ file."""

import logging

import numpy as np
import pytest

from pcdet.datasets.modelnet.object_crops import ObjectCropsDataset
from pcdet.datasets.whole_clouds.selection import choose_points

SIZES = [3, 40, 8, 100]


def content():
    points = np.random.default_rng(0).normal(size=(sum(SIZES), 4)).astype(np.float32)
    return {
        "points": points,
        "offsets": np.cumsum([0, *SIZES]),
        "label": np.array([0, 1, 1, 2], dtype=np.int8),
        "classes": np.array(["Car", "Van", "Tram"]),
        "is_train": np.array([True, True, False, True]),
    }


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "crops.npz", **content())
    return tmp_path / "crops.npz"


def dataset(path, training=True, class_names=("Van", "Car"), **options):
    options = {"data_path": str(path), "num_points": 16, **options}
    return ObjectCropsDataset(
        class_names=class_names, training=training, seed=0, logger=logging.getLogger("pcdet"), **options
    )


def test_every_point_is_taken_before_any_is_repeated():
    rng = np.random.default_rng(0)
    assert sorted(choose_points(3, 8, rng)) in (
        [0, 0, 0, 1, 1, 1, 2, 2],
        [0, 0, 0, 1, 1, 2, 2, 2],
        [0, 0, 1, 1, 1, 2, 2, 2],
    )
    assert len(set(choose_points(40, 16, rng).tolist())) == 16
    assert choose_points(3, 8, None).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert choose_points(10, 5, None).tolist() == [0, 2, 4, 6, 8]
    assert choose_points(7, 7, None).tolist() == list(range(7))


def test_splits_and_labels(path):
    assert dataset(path).labels.tolist() == [1, 0]
    test = dataset(path, training=False)
    assert test.labels.tolist() == [0] and test.frame_id(0) == "000002"
    with pytest.raises(ValueError, match="0 test clouds"):
        dataset(path, training=False, class_names=["Car"])
    with pytest.raises(ValueError, match="no class 'Vann'.*'Van'"):
        dataset(path, class_names=["Vann"])


def test_metres_keep_sizes_and_the_unit_sphere_does_not(path):
    raw = content()["points"][43:51]
    cloud = dataset(path, training=False, num_points=8, scale=2.0)[0]["point_clouds"]
    assert cloud == pytest.approx((raw[:, :3] - raw[:, :3].mean(axis=0)) / 2, abs=1e-6)
    cloud = dataset(path, training=False, num_points=8, normalize="unit_sphere", features=1)[0]["point_clouds"]
    assert np.linalg.norm(cloud[:, :3], axis=1).max() == pytest.approx(1.0, abs=1e-6)
    assert np.array_equal(cloud[:, 3], raw[:, 3])


def test_evaluation_is_the_same_every_time_and_training_is_not(path):
    test, train = dataset(path, training=False), dataset(path)
    assert np.array_equal(test[0]["point_clouds"], test[0]["point_clouds"])
    first = train[1]["point_clouds"]
    assert np.array_equal(first, train[1]["point_clouds"])
    train.set_epoch(1)
    assert not np.array_equal(first, train[1]["point_clouds"])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"points": np.zeros((5, 2))}, "points should be"),
        ({"offsets": np.array([0, 5])}, "offsets"),
        ({"offsets": np.array([0, 3, 3, 51, 151])}, "at least 1 point"),
        ({"label": np.array([0, 1, 1, 3])}, "label holds 3"),
        ({"classes": None}, "keys points"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, change, message):
    data = {key: value for key, value in (content() | change).items() if value is not None}
    np.savez(tmp_path / "bad.npz", **data)
    with pytest.raises(ValueError, match=f"bad.npz.*{message}"):
        dataset(tmp_path / "bad.npz")


def test_b15_a_nan_is_refused_with_the_number_of_its_cloud(tmp_path):
    data = content()
    data["points"][45, 1] = np.nan
    np.savez(tmp_path / "nan.npz", **data)
    with pytest.raises(ValueError, match="cloud 2 has a NaN"):
        dataset(tmp_path / "nan.npz")


def test_options_out_of_range_are_refused(path, tmp_path):
    with pytest.raises(ValueError, match="FEATURES"):
        dataset(path, features=2)
    with pytest.raises(ValueError, match="SCALE"):
        dataset(path, scale=0.0)
    with pytest.raises(FileNotFoundError, match="absent.npz"):
        dataset(tmp_path / "absent.npz")


def test_real_objects(shared):
    path = shared / "data" / "object_crops" / "kitti_object_crops.npz"
    classes = ["Car", "Van", "Pedestrian", "Cyclist"]
    train, test = (dataset(path, training, classes, num_points=64, features=1) for training in (True, False))
    assert np.bincount(train.labels).tolist() == [171, 30, 15, 16]
    assert np.bincount(test.labels).tolist() == [58, 16, 23, 12]
    assert np.isfinite(train[5]["point_clouds"]).all() and train[5]["point_clouds"].shape == (64, 4)
