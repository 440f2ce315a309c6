"""ShapeNetPart's layout: lists, categories, parts, results."""

import json

import numpy as np
import pytest
import torch

from pcdet.datasets import build_dataset, describe_clouds
from pcdet.datasets.whole_clouds.cloud_dataset import Vote
from pcdet.structures.detections import PointScores

PARTS = {"Bag": [4, 5], "Lamp": [27, 24]}
LISTS = {"train": ["02773838/a", "03636649/b"], "val": ["03636649/c"], "test": ["03636649/d", "02773838/e"]}


def rows(name, numbers):
    rng = np.random.default_rng(ord(name))
    cloud = rng.normal(size=(20, 7))
    cloud[:, 6] = np.resize(numbers, 20)
    return cloud


@pytest.fixture
def root(tmp_path):
    (tmp_path / "synsetoffset2category.txt").write_text("Bag\t02773838\nLamp\t03636649\nMug\t03797390\n")
    (tmp_path / "train_test_split").mkdir()
    for split, names in LISTS.items():
        listing = tmp_path / "train_test_split" / f"shuffled_{split}_file_list.json"
        listing.write_text(json.dumps([f"shape_data/{name}" for name in names]))
        for name in names:
            folder, token = name.split("/")
            (tmp_path / folder).mkdir(exist_ok=True)
            numbers = [4, 5] if folder == "02773838" else [27, 24]
            np.savetxt(tmp_path / folder / f"{token}.txt", rows(token, numbers), fmt="%.6f")
    return tmp_path


def settings(root, **options):
    return {"DATASET": "ShapeNetPartDataset", "DATA_PATH": str(root), "PARTS": PARTS, "NUM_POINTS": 16, **options}


def dataset(root, training=True, class_names=("Lamp", "Bag"), **options):
    return build_dataset(settings(root, **options), class_names, training=training)


def test_parts_are_numbered_by_category(root):
    data = dataset(root, training=False)
    assert data.info.class_names == ("Lamp 27", "Lamp 24", "Bag 4", "Bag 5")
    assert data.info.category_names == ("Lamp", "Bag") and data.info.num_point_features == 6
    assert describe_clouds(settings(root), ["Lamp", "Bag"]) == data.info
    item = data[0]
    assert data.frame_id(0) == "03636649/d" and item["categories"] == 0
    chosen = np.arange(16) * 20 // 16  # evenly spread
    assert item["point_labels"].tolist() == [0 if i % 2 == 0 else 1 for i in chosen]  # 27 is the first part of PARTS
    cloud = rows("d", [27, 24])
    xyz = cloud[:, :3] - cloud[:, :3].mean(axis=0)
    assert item["point_clouds"][:, :3] == pytest.approx((xyz / np.linalg.norm(xyz, axis=1).max())[chosen], abs=1e-5)
    assert item["point_clouds"][:, 3:] == pytest.approx(cloud[chosen, 3:6], abs=1e-5)
    assert data.allowed(1).tolist() == [2, 3]


def test_the_lists_of_each_split(root):
    assert len(dataset(root)) == 2
    assert len(dataset(root, TRAIN_LISTS=["train", "val"])) == 3
    val = dataset(root, training=False, EVAL_SPLIT="val")
    assert [val.frame_id(i) for i in range(len(val))] == ["03636649/c"]
    with pytest.raises(ValueError, match="TRAIN_LISTS trains on it"):
        dataset(root, training=False, EVAL_SPLIT="val", TRAIN_LISTS=["train", "val"])


def test_labels_follow_their_points_through_the_augmentation(root):
    data = dataset(root, POINT_CHOICE="first", AUGMENTATION={"SHUFFLE": True, "DROPOUT": 0.5})
    item = data[0]
    plain = dataset(root, POINT_CHOICE="first")[0]
    for point, label in zip(item["point_clouds"], item["point_labels"], strict=True):
        match = np.flatnonzero(np.isclose(plain["point_clouds"], point, atol=1e-6).all(axis=1))
        assert plain["point_labels"][match[0]] == label


def test_results_keep_to_the_categorys_parts_and_votes_are_put_in_order(root):
    data = dataset(root, training=False)
    plain = data.collate([data[0], data[1]])
    assert plain["categories"].tolist() == [0, 1] and plain["point_labels"].dtype == torch.int64
    logits = torch.zeros(2, 16, 4)
    logits[0, :, 3] = 9.0  # a part of a bag, which a lamp does not have
    logits[0, :, 1] = torch.arange(16.0) - 7.5
    results = data.to_results(plain, PointScores(logits))
    assert results[0]["called"].tolist() == [0] * 8 + [1] * 8
    assert results[1]["called"].tolist() == [2] * 16
    data.vote = Vote(0, 2, turns=False)
    order = data.vote_order(0)
    viewed = data.collate([data[0]])
    assert viewed["point_labels"][0].tolist() == plain["point_labels"][0][order].tolist()
    voted = data.to_results(viewed, PointScores(logits[:1, order]))
    assert np.array_equal(voted[0]["called"], results[0]["called"])
    assert np.array_equal(voted[0]["labels"], results[0]["labels"])
    other = [{**voted[0], "scores": -2 * voted[0]["scores"]}]
    assert data.add_votes([voted, other])[0]["called"].tolist() == [1] * 8 + [0] * 8


def test_the_evaluation_of_perfect_and_of_one_sided_results(root, tmp_path):
    data = dataset(root, training=False)
    labels = [data[i]["point_labels"].astype(np.int16) for i in range(2)]
    right = [{"frame_id": data.frame_id(i), "index": i, "labels": labels[i], "called": labels[i]} for i in range(2)]
    report = data.evaluate(right)
    assert report.metrics.keys() <= data.metric_names()
    assert report.metrics["iou/instance_mean"] == 1.0 and report.metrics["iou_of/Bag"] == 1.0
    wrong = [{**right[0], "called": np.zeros(16, np.int16)}, right[1]]
    share = float((labels[0] == 0).mean())  # IoU of the first part; the second has 0
    assert data.evaluate(wrong).metrics["iou_of/Lamp"] == pytest.approx(share / 2)
    data.write_results(right, tmp_path / "out")
    assert np.loadtxt(tmp_path / "out" / "03636649_d.txt").shape == (16, 2)


def test_damaged_folders_are_named(root, tmp_path):
    with pytest.raises(ValueError, match="no category 'Bagg'.*'Bag'"):
        dataset(root, class_names=["Bagg"], PARTS={"Bagg": [1]})
    with pytest.raises(ValueError, match="the parts of 'Mug' are not given"):
        dataset(root, class_names=["Mug"])
    with pytest.raises(ValueError, match="e.txt:1: part 4, but Bag has the parts"):
        dataset(root, training=False, PARTS={"Bag": [5], "Lamp": [27, 24]})
    (root / "02773838" / "a.txt").write_text("1 2 3\n")
    with pytest.raises(ValueError, match="a.txt holds 1 rows of 3 numbers"):
        dataset(root)
    (root / "02773838" / "a.txt").unlink()
    with pytest.raises(ValueError, match="a.txt is absent"):
        dataset(root)
    (root / "synsetoffset2category.txt").unlink()
    with pytest.raises(ValueError, match="holds no synsetoffset2category.txt"):
        dataset(root)
