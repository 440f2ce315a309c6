"""The data set's items and batches."""

import copy
import json
import logging

import numpy as np
import pytest
import torch
import yaml

from pcdet.config import load_dataset_config
from pcdet.datasets import build_dataset
from pcdet.datasets.augment.world import flip, rotate, scale
from pcdet.datasets.kitti.infos import create_infos
from pcdet.utils.files import write_pickle

CLASSES = ["Car", "Pedestrian", "Cyclist"]


def build(settings, root, training=True, **options):
    return build_dataset(settings, options.pop("class_names", CLASSES), training=training, root=root, **options)


def without_augmentation(settings):
    return {**settings, "DATA_AUGMENTOR": {"DISABLE_AUG_LIST": [], "AUG_CONFIG_LIST": []}}


def test_the_whole_road_from_infos_to_a_batch(small_kitti, data_settings):
    data = build(data_settings, small_kitti, seed=3)
    assert len(data) == 3 and data.info.grid_size == (432, 496, 1) and data.info.class_names == tuple(CLASSES)
    assert data.info.point_cloud_range == (0.0, -39.68, -3.0, 69.12, 39.68, 1.0)
    assert data.info.voxel_size == (0.16, 0.16, 4.0) and data.info.max_points_per_voxel == 32
    batch = data.collate([data[i] for i in range(3)])
    assert batch["batch_size"] == 3 and batch["frame_id"] == ["000001", "000003", "000004"]
    assert batch["index"] == [0, 1, 2]
    assert batch["points"].shape[1] == 5 and batch["points"].dtype == torch.float32
    assert batch["points"][:, 0].unique().tolist() == [0, 1, 2]
    coords = batch["voxel_coords"]
    assert coords.dtype == torch.int32 and coords.shape == (len(batch["voxels"]), 4)
    assert (coords[:, 1:] >= 0).all() and (coords[:, 1:] < torch.tensor([1, 496, 432])).all()
    assert (batch["voxel_num_points"] >= 1).all() and batch["voxels"].shape[1:] == (32, 4)
    boxes = batch["gt_boxes"]
    assert boxes.dtype == torch.float32 and boxes.shape[2] == 8
    labels = boxes[..., 7]
    assert set(labels.unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}
    assert (boxes[labels == 0] == 0).all()
    assert batch["image_shape"].tolist() == [[375, 1242]] * 3
    assert all(c.P2.shape == (3, 4) for c in batch["calib"])


def test_items_depend_on_seed_epoch_and_index_alone(small_kitti, data_settings):
    one, two = (build(data_settings, small_kitti, seed=5) for _ in range(2))
    two[1]
    np.testing.assert_array_equal(one[0]["points"], two[0]["points"])
    two.set_epoch(1)
    assert not np.array_equal(one[0]["gt_boxes"], two[0]["gt_boxes"])
    other = build(data_settings, small_kitti, seed=6)
    assert not np.array_equal(one[0]["gt_boxes"], other[0]["gt_boxes"])


def test_e5_items_do_not_depend_on_the_loaders_workers(small_kitti, data_settings):
    data = build(data_settings, small_kitti)
    found = []
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(data, batch_size=1, num_workers=workers, collate_fn=data.collate)
        found.append([batch["points"] for batch in loader])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_evaluation_draws_nothing_and_keeps_every_frame(small_kitti, data_settings):
    data = build(data_settings, small_kitti, training=False)
    first = data[0]
    data.set_epoch(4)
    np.testing.assert_array_equal(first["points"], data[0]["points"])
    assert [len(data[i]["gt_boxes"]) for i in range(2)] == [1, 0]


def test_only_points_that_the_camera_sees_unless_told_otherwise(small_kitti, data_settings):
    settings = without_augmentation(data_settings)
    seen = build(settings, small_kitti)[0]["points"]
    everything = build({**settings, "FOV_POINTS_ONLY": False}, small_kitti)[0]["points"]
    assert len(seen) < len(everything)


def test_disabled_augmentors_are_not_built(small_kitti, data_settings):
    settings = copy.deepcopy(data_settings)
    settings["DATA_AUGMENTOR"]["DISABLE_AUG_LIST"] = ["gt_sampling", "random_world_rotation"]
    names = [type(a).__name__ for a in build(settings, small_kitti).augmentors]
    assert names == ["RandomWorldFlip", "RandomWorldScaling"]
    assert build(settings, small_kitti, training=False).augmentors == []


def test_unwanted_classes_leave_but_still_stand_in_the_way(small_kitti, data_settings):
    item = build(without_augmentation(data_settings), small_kitti)[0]  # a car and a van
    assert item["gt_boxes"][:, 7].tolist() == [1.0]


@pytest.mark.parametrize("which", [[3], [0], [0, 1, 2, 3]])
def test_c3_scenes_without_points_keep_their_place_in_the_batch(which, small_kitti, data_settings):
    data = build(data_settings, small_kitti)
    full = data[0]
    bare = {
        **full,
        **{k: full[k][:0] for k in ("points", "voxels", "voxel_coords", "voxel_num_points", "gt_boxes")},
    }
    batch = data.collate([bare if i in which else full for i in range(4)])
    assert batch["batch_size"] == 4 and len(batch["frame_id"]) == 4 and batch["gt_boxes"].shape[0] == 4
    assert set(batch["points"][:, 0].tolist()) == set(range(4)) - set(which)
    assert (batch["gt_boxes"][which] == 0).all()


def test_c11_absent_road_planes_are_one_warning_and_training_goes_on(small_kitti, data_settings, caplog):
    """One of three frames has no plane."""
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        data = build(data_settings, small_kitti)
        assert len(data[2]["gt_boxes"]) >= 2
        data[2]
    assert [r.message.startswith("USE_ROAD_PLANE: 1 of 3 frames, such as 000004") for r in caplog.records] == [True]


@pytest.mark.parametrize("frames", [1, 3])
def test_c4_no_wanted_class_at_all_stops_before_training(frames, kitti_tree, data_settings):
    van = ("Van", np.array([20, 0, -0.6, 5.0, 2.0, 2.2, 0.0]))
    for i in range(frames):
        kitti_tree.add("train", f"{i:06d}", [van])
    create_infos(kitti_tree.root)
    settings = without_augmentation(data_settings)
    with pytest.raises(ValueError, match="0 usable objects.*KEEP_EMPTY"):
        build(settings, kitti_tree.root)
    data = build({**settings, "KEEP_EMPTY": True}, kitti_tree.root)
    batch = data.collate([data[i] for i in range(frames)])
    assert batch["gt_boxes"].shape == (frames, 0, 8)


def test_c4_objects_lost_to_the_range_are_replaced_or_reported(kitti_tree, data_settings):
    near, far = (("Car", np.array([x, 0, -0.9, 3.9, 1.6, 1.5, 0.0])) for x in (20, 69.5))
    kitti_tree.add("train", "000000", [far])
    kitti_tree.add("train", "000001", [near])
    create_infos(kitti_tree.root)
    settings = without_augmentation(data_settings)
    data = build(settings, kitti_tree.root)
    assert data[0]["frame_id"] == data[1]["frame_id"] == "000001"
    short = {**settings, "POINT_CLOUD_RANGE": [30, -39.68, -3, 69.04, 39.68, 1]}
    with pytest.raises(ValueError, match="0 usable objects: none of the 2 scenes"):
        build(short, kitti_tree.root)[0]


def test_b15_points_that_are_not_finite_never_reach_an_item(kitti_tree, data_settings, caplog):
    kitti_tree.add("train", "000000", [("Car", np.array([20, 0, -0.9, 3.9, 1.6, 1.5, 0.0]))])
    path = kitti_tree.root / "training" / "velodyne" / "000000.bin"
    create_infos(kitti_tree.root)
    points = np.fromfile(path, np.float32).reshape(-1, 4)
    points[:3, 0], points[3, 2], points[4, 3] = np.nan, np.inf, np.nan
    points.tofile(path)
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        data = build(without_augmentation(data_settings), kitti_tree.root)
        item = data[0]
        data[0]
    assert np.isfinite(item["points"]).all() and np.isfinite(item["voxels"]).all()
    assert sum("5 points are NaN or infinite" in r.message for r in caplog.records) == 1
    np.full((10, 4), np.nan, np.float32).tofile(path)
    kept = build({**without_augmentation(data_settings), "KEEP_EMPTY": True}, kitti_tree.root)[0]
    assert kept["points"].shape == (0, 4) and kept["voxels"].shape == (0, 32, 4)


def test_b14_intensity_is_scaled_on_request_and_doubted_otherwise(kitti_tree, data_settings, caplog):
    kitti_tree.add("train", "000000", [("Car", np.array([20, 0, -0.9, 3.9, 1.6, 1.5, 0.0]))])
    create_infos(kitti_tree.root)
    path = kitti_tree.root / "training" / "velodyne" / "000000.bin"
    points = np.fromfile(path, np.float32).reshape(-1, 4)
    settings = without_augmentation(data_settings)
    original = build(settings, kitti_tree.root)[0]["points"]
    (points * np.float32([1, 1, 1, 255])).tofile(path)
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        build(settings, kitti_tree.root)
    assert any("INTENSITY_SCALE" in r.message for r in caplog.records)
    caplog.clear()
    scaled = build({**settings, "INTENSITY_SCALE": 1 / 255}, kitti_tree.root)[0]["points"]
    np.testing.assert_allclose(scaled, original, atol=1e-6)
    assert not caplog.records


def test_point_features_may_be_fewer_or_in_another_order(small_kitti, data_settings):
    settings = without_augmentation(data_settings)
    settings["POINT_FEATURE_ENCODING"] = {**settings["POINT_FEATURE_ENCODING"], "used_feature_list": ["x", "y", "z"]}
    data = build(settings, small_kitti)
    assert data[0]["points"].shape[1] == 3 and data.info.num_point_features == 3
    settings["POINT_FEATURE_ENCODING"]["used_feature_list"] = ["x", "y", "z", "elongation"]
    with pytest.raises(ValueError, match="elongation"):
        build(settings, small_kitti)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"DATASET": "KitiDataset"}, KeyError, "Did you mean 'KittiDataset'"),
        ({"FOV_ONLY": True}, ValueError, "takes no option FOV_ONLY"),
        ({"INFO_PATH": {"train": ["none.pkl"]}}, FileNotFoundError, "none.pkl .*create_data.py kitti --data_path"),
        ({"GET_ITEM_LIST": ["images"]}, ValueError, "GET_ITEM_LIST"),
        ({"POINT_CLOUD_RANGE": [0, 0, 0, -1, 1, 1]}, ValueError, "POINT_CLOUD_RANGE"),
        ({"POINT_CLOUD_RANGE": [0, -39.68, -3, 70, 39.68, 1]}, ValueError, "VOXEL_SIZE 0.16"),
        ({"DATA_PROCESSOR": [{"NAME": "shuffle"}]}, ValueError, r"DATA_PROCESSOR.0: No processor.*'shuffle_points'"),
    ],
)
def test_wrong_settings_are_named(change, error, message, small_kitti, data_settings):
    with pytest.raises(error, match=message):
        build({**data_settings, **change}, small_kitti)


def test_a_missing_data_folder_lists_the_places_tried(data_settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not found. Tried:") as error:
        build_dataset({**data_settings, "DATA_PATH": "no/such/folder"}, CLASSES, training=True)
    assert str(error.value).count("no/such/folder") == 4 and str(tmp_path) in str(error.value)


def test_infos_with_anything_but_data_are_refused(kitti_tree, data_settings):
    write_pickle(kitti_tree.root / "kitti_infos_train.pkl", [logging.Formatter("%(message)s")])
    with pytest.raises(ValueError, match="kitti_infos_train.pkl.*only plain types"):
        build(data_settings, kitti_tree.root)


NEED_IMAGES = ("CaDDN", "voxel_rcnn_car_focal_multimodal")


def test_the_data_blocks_of_all_known_configurations_pass_the_checker_and_build(shared, small_kitti, tmp_path):
    configs = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())
    built = 0
    for name, config in configs.items():
        if not name.startswith("kitti_models/") or name.split("/")[1].removesuffix(".yaml") in NEED_IMAGES:
            continue
        own = {k: v for k, v in config["DATA_CONFIG"].items() if k != "_BASE_CONFIG_"}
        path = tmp_path / "data.yaml"
        path.write_text(yaml.safe_dump({**configs["dataset_configs/kitti_dataset.yaml"], **own}))
        data = build(load_dataset_config(path), small_kitti, class_names=config["CLASS_NAMES"])
        assert len(data[0]["gt_boxes"]) > 0
        built += 1
    assert built == 14


def sorted_rows(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.reshape(len(rows), -1).T)]


@pytest.fixture(scope="module")
def real(shared, tmp_path_factory):
    """Infos of the first three real frames, as both splits."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "ImageSets").mkdir()
    for split in ("train", "val"):
        (folder / "ImageSets" / f"{split}.txt").write_text("000000\n000001\n000002\n")
    (folder / "training").symlink_to(shared / "data/kitti/training")
    create_infos(folder)
    return folder


@pytest.mark.parametrize("mode", ["train", "test"])
@pytest.mark.parametrize("model", ["second", "pointpillar", "pointrcnn"])
def test_items_of_real_frames_equal_the_recorded_ones(model, mode, real, shared):
    """Without augmentation. Shuffled points are compared as sets, and voxels that are not full likewise."""
    configs = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())
    own = {k: v for k, v in configs[f"kitti_models/{model}.yaml"]["DATA_CONFIG"].items() if k != "_BASE_CONFIG_"}
    settings = without_augmentation({**configs["dataset_configs/kitti_dataset.yaml"], **own})
    data = build(settings, real, training=mode == "train")
    recorded = np.load(shared / f"oracles/openpcdet_data/items_{model}.npz")
    for i in range(3):
        item = data[i]
        expected = {k: recorded[f"{mode}_{i}_{k}"] for k in item if f"{mode}_{i}_{k}" in recorded}
        for key, value in expected.items():
            assert (item[key].dtype, item[key].shape) == (value.dtype, value.shape) or key.startswith("voxel"), key
        np.testing.assert_allclose(item["gt_boxes"], expected["gt_boxes"], atol=2e-6)
        np.testing.assert_array_equal(item["image_shape"], expected["image_shape"])
        if model != "pointrcnn":
            np.testing.assert_array_equal(sorted_rows(item["points"]), sorted_rows(expected["points"]))
            compare_voxels(item, expected, exact=mode == "test", limit=16000 if mode == "train" else 40000)
        else:
            far = [p[np.linalg.norm(p[:, :3], axis=1) >= 40] for p in (item["points"], expected["points"])]
            np.testing.assert_array_equal(*(np.unique(f, axis=0) for f in far))


def compare_voxels(item, expected, exact: bool, limit: int) -> None:
    if exact:
        for key in ("voxels", "voxel_coords", "voxel_num_points"):
            np.testing.assert_array_equal(item[key], expected[key])
        return
    assert len(item["voxels"]) == len(expected["voxels"]) <= limit
    if len(item["voxels"]) == limit:
        return  # which voxels there are depends on the order of the points
    ours, theirs = (np.lexsort(d["voxel_coords"].T) for d in (item, expected))
    np.testing.assert_array_equal(item["voxel_coords"][ours], expected["voxel_coords"][theirs])
    np.testing.assert_array_equal(item["voxel_num_points"][ours], expected["voxel_num_points"][theirs])
    counts = item["voxel_num_points"][ours]
    partial = np.flatnonzero(counts < item["voxels"].shape[1])
    for a, b in zip(item["voxels"][ours][partial], expected["voxels"][theirs][partial], strict=True):
        np.testing.assert_array_equal(sorted_rows(a), sorted_rows(b))


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=0, atol=5e-5)


def test_world_augmentation_of_real_frames_equals_the_recorded_one(real, shared):
    """Angle and factor are read off the recorded matrix, which does not hold the flip: one of both ways must fit."""
    configs = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())
    data = build(without_augmentation(configs["dataset_configs/kitti_dataset.yaml"]), real)
    recorded = np.load(shared / "oracles/openpcdet_data/items_second.npz")
    for i in range(3):
        matrix = recorded[f"aug_{i}_lidar_aug_matrix"][:3, :3]
        factor = np.linalg.norm(matrix[0])
        angle = np.arctan2(matrix[1, 0], matrix[0, 0])
        plain = data.load_scene(i)
        ways = [scale(rotate(start, angle), factor) for start in (plain, flip(plain, "x"))]
        ways = [data.processors[0](scene, np.random.default_rng(0)) for scene in ways]
        expected = recorded[f"aug_{i}_gt_boxes"][:, :7]
        fitting = [s for s in ways if same(s.gt_boxes[np.isin(s.gt_names, CLASSES)], expected)]
        assert len(fitting) == 1
        scene = fitting[0]
        assert abs(len(scene.points) - len(recorded[f"aug_{i}_points"])) <= 1
        ours, theirs = (np.sort(p[:, 2]) for p in (scene.points, recorded[f"aug_{i}_points"]))
        if len(ours) == len(theirs):
            np.testing.assert_allclose(ours, theirs, atol=2e-5)
