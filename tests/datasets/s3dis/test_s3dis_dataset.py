"""S3DIS's layout: areas, annotations, blocks."""

import numpy as np
import pytest

from pcdet.datasets import build_dataset

CLASSES = ["floor", "chair", "clutter"]


def write_room(root, area, name, points):
    folder = root / f"Area_{area}" / name / "Annotations"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(area)
    for kind, count in points.items():
        xyz = rng.uniform([10, 20, 1], [12.5, 21.5, 4], (count, 3))
        np.savetxt(folder / f"{kind}_1.txt", np.hstack([xyz, rng.integers(0, 256, (count, 3))]), fmt="%.3f")


@pytest.fixture
def root(tmp_path):
    write_room(tmp_path, 1, "office_1", {"floor": 4000, "chair": 3000})
    write_room(tmp_path, 2, "hall_1", {"floor": 3000})
    write_room(tmp_path, 5, "office_1", {"floor": 500, "chair": 300, "stairs": 40})
    return tmp_path


def dataset(root, training=True, **options):
    settings = {"DATASET": "S3DISDataset", "DATA_PATH": str(root), "NUM_POINTS": 64, **options}
    return build_dataset(settings, CLASSES, training=training)


def test_every_point_of_the_test_area_is_seen_once(root):
    data = dataset(root, training=False)
    assert data.info.num_point_features == 9 and data.info.num_class == 3
    labels = np.concatenate([data[i]["point_labels"] for i in range(len(data))])
    assert np.bincount(labels[labels >= 0]).tolist() == [500, 300, 40]  # stairs are clutter
    cells = len({tuple(p.centre) for p in data.pieces})
    assert cells == 6 and len(data) < 840 / 64 + cells  # 2.5 by 1.5 metres; as few pieces as hold the points
    for i in range(len(data)):
        cloud = data[i]["point_clouds"]
        assert cloud.shape == (64, 9) and np.abs(cloud[:, :2]).max() <= 0.5 + 1e-5
        assert cloud[:, 3:].min() >= 0 and cloud[:, 3:].max() <= 1 and cloud[:, 2].min() >= 0


def test_a_piece_by_hand(root):
    data = dataset(root, training=False)
    piece, item = data.pieces[0], data[0]
    raw = data.pack.cloud(0)
    low, high = raw[:, :3].min(axis=0), raw[:, :3].max(axis=0)
    first = raw[piece.rows[0]]
    centre = low[:2] + 0.5
    expected = [*(first[:2] - centre), first[2] - low[2], *first[3:], *((first[:3] - low) / (high - low))]
    assert item["point_clouds"][0] == pytest.approx(expected, abs=1e-5)


def test_training_blocks_are_columns_around_a_point(root):
    data = dataset(root)
    assert len(data) == 10_000 // 64 and len(data.pack) == 2
    rooms = set()
    for i in range(12):
        item = data[i]
        assert item["point_clouds"].shape == (64, 9) and np.abs(item["point_clouds"][:, :2]).max() <= 0.5 + 1e-4
        assert item["point_labels"].min() >= 0
        rooms.add(data._draw(np.random.default_rng(i)).room)
    assert rooms == {0, 1}
    assert np.array_equal(data[3]["point_clouds"], dataset(root)[3]["point_clouds"])


def test_areas_of_the_splits(root):
    assert dataset(root).pack.names == ("Area_1_office_1", "Area_2_hall_1")
    assert dataset(root, VAL_AREAS=[2]).pack.names == ("Area_1_office_1",)
    val = dataset(root, training=False, VAL_AREAS=[2], EVAL_SPLIT="val")
    assert val.pack.names == ("Area_2_hall_1",)
    with pytest.raises(ValueError, match="VAL_AREAS names no area"):
        dataset(root, training=False, EVAL_SPLIT="val")
    with pytest.raises(ValueError, match=r"share \[5\]"):
        dataset(root, VAL_AREAS=[5])
    with pytest.raises(ValueError, match="Area_6 holds no"):
        dataset(root, training=False, TEST_AREAS=[6])


def test_perfect_results(root):
    data = dataset(root, training=False)
    labels = [data[i]["point_labels"].astype(np.int16) for i in range(len(data))]
    results = [{"frame_id": "x", "index": i, "labels": v, "called": np.maximum(v, 0)} for i, v in enumerate(labels)]
    metrics = data.evaluate(results).metrics
    assert metrics.keys() <= data.metric_names()
    assert metrics["iou/mean"] == 1.0 and metrics["accuracy/overall"] == 1.0


def test_a_damaged_line_is_named(root):
    path = root / "Area_5" / "office_1" / "Annotations" / "chair_1.txt"
    path.write_text("1 2 3 4 5 6\n1 2 3\x104 5 6 7\n")
    with pytest.raises(ValueError, match="chair_1.txt should hold rows of x, y, z, r, g, b.*at row 1, column 3"):
        dataset(root, training=False)
