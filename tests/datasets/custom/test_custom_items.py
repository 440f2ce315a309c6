"""Items, batches, results and evaluation of own data."""

import json
import logging

import numpy as np
import pytest
import torch

from pcdet.config import load_config
from pcdet.datasets import build_dataset
from pcdet.structures.detections import Detections
from pcdet.utils.files import read_pickle, write_pickle

CLASSES = ["Vehicle", "Pedestrian", "Cyclist"]


def build(settings, root, training=False, class_names=CLASSES):
    return build_dataset(settings, class_names, training=training, root=root)


def test_the_whole_road_from_infos_to_a_batch(small_custom, custom_settings):
    data = build(custom_settings, small_custom, training=True)
    batch = data.collate([data[i] for i in range(2)])
    assert batch["batch_size"] == 2 and batch["frame_id"] == ["a", "b"] and "image_shape" not in batch
    assert batch["calib"] == [None, None] and batch["points"].shape[1] == 5
    assert data.info.grid_size == (256, 256, 40) and set(batch["gt_boxes"][..., 7].unique().tolist()) >= {1.0, 2.0, 3.0}


def test_labels_reach_an_item_unchanged(small_custom, custom_settings):
    boxes = build(custom_settings, small_custom)[0]["gt_boxes"]
    expected = [[-5, 4, 0.8, 4, 1.8, 1.6, 2.9, 1], [10, -3, 0.8, 4, 1.8, 1.6, 0, 1]]
    np.testing.assert_allclose(boxes, expected, atol=1e-6)


def test_classes_that_are_not_wanted_are_named_once_with_counts(small_custom, custom_settings, caplog):
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        data = build(custom_settings, small_custom, training=True)
        data[0], data[1]
    assert [r.message for r in caplog.records if "CLASS_NAMES" in r.message] == [
        "train: labelled classes that CLASS_NAMES does not name are left out: Tram 1"
    ]


def test_infos_of_openpcdet_need_not_count_points(small_custom, custom_settings):
    path = small_custom / "custom_infos_val.pkl"
    infos = read_pickle(path)
    for info in infos:
        info["annos"].pop("num_points_in_gt")
    write_pickle(path, infos)
    data = build(custom_settings, small_custom)
    assert data.evaluate(perfect(data), min_points=5).metrics["recall_at_score/Vehicle"] == 1
    with pytest.raises(ValueError, match="bands by points need num_points_in_gt"):
        build({**custom_settings, "EVALUATION": {"POINT_BANDS": [5]}}, small_custom).evaluate(perfect(data))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"EVALUATION": {"MIN_OVERLAPS": {"Vehicle": [0.7]}}}, "Vehicle are .0.7.; two are needed"),
        ({"EVALUATION": {"MIN_OVERLAPS": {"Vehicle": [1.5, 0.5]}}}, "must lie in"),
        ({"EVALUATION": {"DISTANCE_BANDS": [50, 30]}}, "must be positive and rise"),
        ({"MAP_CLASS_TO_KITTI": {"Vehicle": "Auto"}}, "Vehicle: Auto; KITTI's classes are"),
        ({"FOV_POINTS_ONLY": True}, "takes no option FOV_POINTS_ONLY"),
    ],
)
def test_d6_what_cannot_be_evaluated_is_an_error_before_training(small_custom, custom_settings, change, message):
    with pytest.raises(ValueError, match=message):
        build({**custom_settings, **change}, small_custom, training=True)


def test_absent_infos_name_the_command(custom_tree, custom_settings):
    with pytest.raises(FileNotFoundError, match="custom_infos_val.pkl.*create_data.py custom --cfg_file"):
        build(custom_settings, custom_tree.root)


def test_c4_no_wanted_class_stops_before_training(small_custom, custom_settings):
    with pytest.raises(ValueError, match="0 usable objects"):
        build(custom_settings, small_custom, training=True, class_names=["Boat"])


def perfect(data, score=0.9):
    """Every labelled box found."""
    batch = data.collate([data[i] for i in range(len(data))])
    found = []
    for rows in batch["gt_boxes"]:
        rows = rows[rows[:, 7] > 0]
        found.append(Detections(rows[:, :7], torch.full((len(rows),), score), rows[:, 7].long()))
    return data.to_results(batch, found)


def test_results_and_their_files(small_custom, custom_settings, tmp_path):
    data = build(custom_settings, small_custom)
    results = perfect(data)
    assert {"name", "score", "boxes_lidar", "pred_labels", "frame_id", "index"} == set(results[0])
    data.write_results(results, tmp_path)
    assert (tmp_path / "c.txt").read_text().splitlines()[1] == (
        "10.0000 -3.0000 0.8000 4.0000 1.8000 1.6000 0.0000 Vehicle 0.9000"
    )
    assert (tmp_path / "d.txt").read_text() == ""
    assert [r["frame_id"] for r in json.loads((tmp_path / "results.json").read_text())] == ["c", "d"]


def test_the_evaluation_of_perfect_results(small_custom, custom_settings):
    data = build(custom_settings, small_custom)
    report = data.evaluate(perfect(data)[::-1])
    assert report.metrics.keys() <= data.metric_names()
    assert report.metrics["Vehicle_3d/all_exact"] == report.metrics["Vehicle_bev/0-30m_exact"] == 100
    assert report.metrics["recall_at_score/Vehicle"] == report.metrics["recall/rcnn_0.7"] == 1
    assert not any(tag.startswith("Cyclist_3d") for tag in report.metrics)
    assert "no ground truth of Cyclist" in report.text and "n/a" in report.text


def test_overlaps_come_from_the_yaml(small_custom, custom_settings):
    """A box shifted along its length by a quarter overlaps 3/5."""
    shifted = build(custom_settings, small_custom)
    results = perfect(shifted)
    for result in results:
        headings = result["boxes_lidar"][:, 6:7]
        result["boxes_lidar"][:, :2] += np.concatenate([np.cos(headings), np.sin(headings)], axis=1)
    assert shifted.evaluate(results).metrics["Vehicle_3d/all_exact"] == 0
    assert shifted.evaluate(results).metrics["Vehicle_3d_loose/all_exact"] == 100
    settings = {**custom_settings, "EVALUATION": {"MIN_OVERLAPS": {"Vehicle": [0.59, 0.3]}}}
    metrics = build(settings, small_custom).evaluate(results).metrics
    assert metrics["Vehicle_3d/all_exact"] == 100 and metrics["recall_at_score/Vehicle"] == 1


def test_d5_a_split_without_labels_has_no_metrics(small_custom, custom_settings):
    settings = {**custom_settings, "DATA_SPLIT": {"train": "train", "test": "test"}}
    settings["INFO_PATH"] = {"train": ["custom_infos_train.pkl"], "test": ["custom_infos_test.pkl"]}
    data = build(settings, small_custom)
    report = data.evaluate([])
    assert report.metrics == {} and "no ground truth in this split" in report.text


@pytest.mark.parametrize("name", ["second", "pv_rcnn"])
def test_openpcdets_configurations_load_with_either_base_path(name, shared, root):
    values = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())
    ours = load_config(root / f"cfgs/custom_models/{name}.yaml").settings
    recorded = values[f"custom_models/{name}.yaml"]
    assert ours.MODEL == recorded["MODEL"] and ours.OPTIMIZATION == recorded["OPTIMIZATION"]
    data = {k: v for k, v in ours.DATA_CONFIG.items() if k != "_BASE_CONFIG_"}
    assert data == values["dataset_configs/custom_dataset.yaml"]
