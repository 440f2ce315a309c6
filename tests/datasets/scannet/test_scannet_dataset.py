"""ScanNet's pickles: two lists in a file, points that nobody labelled, weights of classes."""

import pickle

import numpy as np
import pytest

from pcdet.datasets import build_dataset

CLASSES = ["wall", "floor"]


def scan(seed, labels, count=2000):
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 3, (count, 3)).astype(np.float32), np.resize(labels, count).astype(np.int32)


def write(path, scans, protocol=2):
    with open(path, "wb") as file:
        for column in zip(*scans, strict=True):
            pickle.dump(list(column), file, protocol=protocol)


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "scannet_train.pickle", [scan(i, [0, 1, 1, 2, 1, 1]) for i in range(4)])
    write(tmp_path / "scannet_test.pickle", [scan(9, [0, 1, 2])])
    return tmp_path


def dataset(root, training=True, **options):
    settings = {"DATASET": "ScanNetDataset", "DATA_PATH": str(root), "NUM_POINTS": 128, **options}
    return build_dataset(settings, CLASSES, training=training)


def test_points_without_a_label_are_minus_one(root):
    data = dataset(root, training=False)
    labels = np.concatenate([data[i]["point_labels"] for i in range(len(data))])
    assert np.bincount(labels[labels >= 0]).tolist() == [667, 666] and data[0]["point_clouds"].shape == (128, 3)
    assert data.info.class_weights is None


def test_weights_of_classes_by_hand(root):
    weights = dataset(root).info.class_weights
    assert weights == pytest.approx([1 / np.log(1.2 + 0.8), 1 / np.log(1.2 + 0.2)], abs=1e-3)
    assert dataset(root, WEIGH_CLASSES=False).info.class_weights is None


def test_scans_are_held_out(root):
    train = dataset(root, HOLD_OUT=0.25)
    val = dataset(root, training=False, HOLD_OUT=0.25, EVAL_SPLIT="val")
    assert sorted(train.pack.names + val.pack.names) == [f"scan_000{i}" for i in range(4)]
    assert len(val.pack) == 1
    val.pack.labels_of_points(0)[5]  # a copy that can be indexed like the pack


def test_damaged_files_are_named(root):
    write(root / "scannet_test.pickle", [scan(1, [0, 3])])
    with pytest.raises(ValueError, match="scan 0 has the label 3, but CLASS_NAMES lists 2"):
        dataset(root, training=False)
    (root / "scannet_test.pickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ValueError, match="scannet_test.pickle.*only plain types"):
        dataset(root, training=False)
    (root / "scannet_test.pickle").unlink()
    with pytest.raises(FileNotFoundError, match="scannet_test.pickle is absent"):
        dataset(root, training=False)
