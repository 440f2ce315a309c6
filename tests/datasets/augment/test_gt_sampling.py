"""Pasting objects of the database."""

import logging
import pickle

import numpy as np
import pytest
import torch

from pcdet.datasets.augment.database import from_fake_lidar
from pcdet.datasets.augment.gt_sampling import GtSampling, ground_height
from pcdet.datasets.augment.registry import AugmentContext
from pcdet.ops.iou3d import boxes_iou_bev
from pcdet.ops.points_in_boxes import points_in_boxes_mask
from pcdet.utils.files import write_pickle

CLASSES = ("Car", "Pedestrian")


@pytest.fixture
def database(tmp_path):
    """Ten cars in a row, 8 m apart, and two pedestrians on top of each other; points relative to the centres."""
    (tmp_path / "gt_database").mkdir()
    rng = np.random.default_rng(0)
    boxes = {
        "Car": [[10 + 4 * i, 15 - 3 * i, -0.9 + 0.1 * i, 3.9, 1.6, 1.5, 0.3 * i] for i in range(10)],
        "Pedestrian": [[20, -9, -0.8, 0.8, 0.6, 1.7, 0.0], [20.1, -9, -0.8, 0.8, 0.6, 1.7, 0.0]],
    }
    index = {}
    for name, rows in boxes.items():
        for i, box in enumerate(rows):
            path = f"gt_database/{name}_{i}.bin"
            points = rng.uniform(-0.25, 0.25, (10 + i, 4)).astype(np.float32)
            points.tofile(tmp_path / path)
            index.setdefault(name, []).append(
                {
                    "name": name,
                    "path": path,
                    "box3d_lidar": np.array(box, dtype=np.float64),
                    "num_points_in_gt": 10 + i,
                    "difficulty": np.int32(i % 3 - 1),
                }
            )
    write_pickle(tmp_path / "db.pkl", index)
    return tmp_path


def sampler(root, classes=CLASSES, **options) -> GtSampling:
    context = AugmentContext(root, classes, 4, logging.getLogger("pcdet"))
    settings = {"db_info_path": ["db.pkl"], "sample_groups": ["Car:5", "Pedestrian:2"], **options}
    return GtSampling(context, **settings)


def overlaps(boxes: np.ndarray) -> float:
    tensor = torch.from_numpy(boxes)
    return float(boxes_iou_bev(tensor, tensor).fill_diagonal_(0).max())


def test_pasted_objects_overlap_nothing_and_bring_their_points(database, scene):
    points, boxes = scene.points.copy(), scene.gt_boxes.copy()
    paste = sampler(database)
    pasted_cars = 0
    for seed in range(20):
        result = paste(scene, np.random.default_rng(seed))
        assert overlaps(result.gt_boxes) == 0
        np.testing.assert_array_equal(result.gt_boxes[: len(boxes)], boxes)
        np.testing.assert_array_equal(result.gt_names[: len(boxes)], scene.gt_names)
        new = result.gt_boxes[len(boxes) :]
        pasted_cars += len(new)
        assert set(result.gt_names[len(boxes) :]) <= {"Car"}  # the two pedestrians overlap each other
        inside = points_in_boxes_mask(result.points, new).sum(axis=1)
        numbers = [int(np.abs(paste.database.boxes["Car"] - box).max(axis=1).argmin()) for box in new]
        np.testing.assert_array_equal(inside, [10 + n for n in numbers])  # the scene's own points made room
    assert 40 <= pasted_cars <= 100
    np.testing.assert_array_equal(scene.points, points)
    np.testing.assert_array_equal(scene.gt_boxes, boxes)


def test_equal_seeds_paste_equal_objects_and_others_differ(database, scene):
    paste = sampler(database)
    results = [paste(scene, np.random.default_rng(seed)).gt_boxes for seed in (1, 1, 2)]
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0].shape != results[2].shape or not np.array_equal(results[0], results[2])


def test_limit_whole_scene_counts_the_labelled_objects(database, scene, empty_scene):
    """Two cars are labelled: a limit of 3 leaves one to paste."""
    paste = sampler(database, sample_groups=["Car:3"], limit_whole_scene=True)
    for seed in range(10):
        names = paste(scene, np.random.default_rng(seed)).gt_names
        assert np.sum(names == "Car") <= 3
    assert np.sum(paste(empty_scene, np.random.default_rng(0)).gt_names == "Car") == 3


def test_the_filters_of_prepare(database):
    few = sampler(database, prepare={"filter_by_min_points": ["Car:15"]}).database
    assert len(few.boxes["Car"]) == 5 and len(few.boxes["Pedestrian"]) == 2
    easy = sampler(database, prepare={"filter_by_difficulty": [-1, 1]}).database
    assert len(easy.boxes["Car"]) == 3 and len(easy.boxes["Pedestrian"]) == 1
    with pytest.raises(ValueError, match="filter_by_min_points, filter_by_difficulty, not 'filter_by_age'"):
        sampler(database, prepare={"filter_by_age": [1]})
    with pytest.raises(ValueError, match="CLASS:NUMBER"):
        sampler(database, sample_groups=["Car"])


def test_remove_extra_width_widens_the_room(database, scene):
    wide = sampler(database, sample_groups=["Car:10"], remove_extra_width=[4.0, 4.0, 4.0])
    narrow = sampler(database, sample_groups=["Car:10"])
    left = [len(p(scene, np.random.default_rng(0)).points) for p in (wide, narrow)]
    assert left[0] < left[1]


def test_objects_are_set_down_on_the_road_plane(database, scene, empty_scene):
    """The plane lies 1.7 m below the sensor, so the bottoms of pasted boxes do, and their points move along."""
    paste = sampler(database, use_road_plane=True)
    result = paste(scene, np.random.default_rng(0))
    new = result.gt_boxes[len(scene.gt_boxes) :]
    assert len(new) > 0
    np.testing.assert_allclose(new[:, 2] - new[:, 5] / 2, -1.7, atol=1e-5)
    assert (points_in_boxes_mask(result.points, new).sum(axis=1) >= 10).all()


def test_ground_height_of_a_tilted_plane(scene):
    """y = 1.7 + 0.1 z in the camera frame: the ground sinks by 10 cm a metre ahead."""
    plane = np.array([0, -1, 0.1, 1.7]) / np.linalg.norm([0, -1, 0.1])
    boxes = np.array([[20, 5, 0, 1, 1, 1, 0]], np.float32)
    np.testing.assert_allclose(ground_height(boxes, plane, scene.calib), [-3.7], atol=1e-5)


def test_c11_without_a_road_plane_objects_keep_their_height(database, scene):
    bare = scene.with_(road_plane=None)
    with_step, without = (sampler(database, use_road_plane=u)(bare, np.random.default_rng(0)) for u in (True, False))
    assert len(with_step.gt_boxes) > len(scene.gt_boxes)
    np.testing.assert_array_equal(with_step.gt_boxes, without.gt_boxes)


@pytest.mark.parametrize("why", ["class absent", "filtered away", "file absent"])
def test_c6_nothing_to_paste_is_one_warning(why, database, scene, caplog):
    options = {
        "class absent": {"classes": (*CLASSES, "Cyclist"), "sample_groups": ["Cyclist:15"]},
        "filtered away": {"sample_groups": ["Car:5"], "prepare": {"filter_by_min_points": ["Car:1000"]}},
        "file absent": {"sample_groups": ["Car:5"], "db_info_path": ["none.pkl"]},
    }[why]
    with caplog.at_level("WARNING", logger="pcdet"):
        paste = sampler(database, **options)
        result = paste(scene, np.random.default_rng(0))
    assert len(result.gt_boxes) == len(scene.gt_boxes)
    name = options["sample_groups"][0].split(":")[0]
    assert sum(f"no {name} is left" in r.message for r in caplog.records) == 1


def test_a_damaged_or_missing_object_file_is_named(database, scene):
    for path in (database / "gt_database").glob("Car_*.bin"):
        path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"Car_\d.bin holds \d+ numbers"):
        sampler(database, sample_groups=["Car:10"])(scene, np.random.default_rng(0))
    for path in (database / "gt_database").glob("Car_*.bin"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"Car_\d.bin is missing"):
        sampler(database, sample_groups=["Car:10"])(scene, np.random.default_rng(0))


def test_boxes_of_old_databases():
    """Bottom centre, w l h, and an angle that turns clockwise from -y."""
    old = np.array([[1, 2, 0, 1.6, 3.9, 1.5, -np.pi / 2]])
    np.testing.assert_allclose(from_fake_lidar(old), [[1, 2, 0.75, 3.9, 1.6, 1.5, 0]], atol=1e-12)


def test_it_can_be_sent_to_a_loader_process(database, scene):
    paste = sampler(database)
    first = paste(scene, np.random.default_rng(0)).points
    again = pickle.loads(pickle.dumps(paste))(scene, np.random.default_rng(0)).points  # noqa: S301
    np.testing.assert_array_equal(first, again)
