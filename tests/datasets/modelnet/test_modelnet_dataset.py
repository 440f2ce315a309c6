"""ModelNet in its two layouts, the cache, and what is said about wrong folders."""

import logging
import time

import h5py
import numpy as np
import pytest
import torch

from pcdet.datasets import build_dataset
from pcdet.datasets.modelnet.modelnet_dataset import ModelNetDataset
from pcdet.datasets.whole_clouds.cloud_dataset import Vote
from pcdet.structures.detections import ClassScores

CLASSES = ["night_stand", "sofa"]
LOGGER = logging.getLogger("pcdet")
IDS = {"train": ["night_stand_0001", "sofa_0001", "sofa_0002"], "test": ["night_stand_0002", "sofa_0003"]}


def cloud(cloud_id: str) -> np.ndarray:
    return np.random.default_rng(sum(map(ord, cloud_id))).normal(size=(50, 6)).astype(np.float32)


@pytest.fixture
def txt_root(tmp_path):
    root = tmp_path / "modelnet40_normal_resampled"
    for split, ids in IDS.items():
        for cloud_id in ids:
            path = root / cloud_id.rsplit("_", 1)[0] / f"{cloud_id}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savetxt(path, cloud(cloud_id), fmt="%.6f", delimiter=",")
        (root / f"modelnet40_{split}.txt").write_text("\n".join(ids) + "\n")
    (root / "modelnet10_train.txt").write_text("sofa_0002\n")
    (root / "shape_names.txt").write_text("airplane\nnight_stand\nsofa\n")
    (root / "modelnet10_shape_names.txt").write_text("sofa\n")
    return root


@pytest.fixture
def h5_root(tmp_path):
    root = tmp_path / "modelnet40_ply_hdf5_2048"
    root.mkdir()
    for split, ids in IDS.items():
        with h5py.File(root / f"ply_data_{split}0.h5", "w") as file:
            file["data"] = np.stack([cloud(i)[:, :3] for i in ids])
            file["label"] = np.array([[1 if i.startswith("night") else 2] for i in ids], dtype=np.uint8)
        (root / f"{split}_files.txt").write_text(f"data/modelnet40_ply_hdf5_2048/ply_data_{split}0.h5\n")
    (root / "shape_names.txt").write_text("airplane\nnight_stand\nsofa\n")
    return root


def dataset(root, training=True, class_names=CLASSES, **options):
    options = {"data_path": str(root), "num_points": 32, **options}
    return ModelNetDataset(class_names=class_names, training=training, seed=0, logger=LOGGER, **options)


@pytest.mark.parametrize("layout", ["txt_root", "h5_root"])
def test_both_layouts_give_the_same_clouds(layout, request):
    data = dataset(request.getfixturevalue(layout))
    assert data.labels.tolist() == [0, 1, 1]  # positions in CLASS_NAMES, not lines of the file
    first = cloud("night_stand_0001")[:32, :3]
    first = first - first.mean(axis=0)
    first /= np.linalg.norm(first, axis=1).max()
    assert data[0]["point_clouds"] == pytest.approx(first, abs=1e-5)
    assert data.info.point_features == ("x", "y", "z") and data.info.num_class == 2
    assert len(dataset(request.getfixturevalue(layout), training=False)) == 2


def test_normals_follow_on_request(txt_root, h5_root):
    data = dataset(txt_root, use_normals=True)
    assert data[1]["point_clouds"][:, 3:] == pytest.approx(cloud("sofa_0001")[:32, 3:], abs=1e-5)
    assert data.info.num_point_features == 6
    with pytest.raises(ValueError, match="USE_NORMALS"):
        dataset(h5_root, use_normals=True)


def test_names_with_underscores_and_modelnet10(txt_root):
    assert dataset(txt_root).frame_id(0) == "night_stand_0001"
    small = dataset(txt_root, class_names=["sofa"], variant="modelnet10")
    assert [small.frame_id(i) for i in range(len(small))] == ["sofa_0002"]
    (txt_root / "shape_names.txt").rename(txt_root / "modelnet40_shape_names.txt")
    assert len(dataset(txt_root)) == 3


def test_other_classes_are_left_out(txt_root):
    assert dataset(txt_root, class_names=["sofa"]).labels.tolist() == [0, 0]
    with pytest.raises(ValueError, match="no class 'sofas'.*'sofa'"):
        dataset(txt_root, class_names=["sofas"])
    with pytest.raises(ValueError, match="no cloud of"):
        dataset(txt_root, class_names=["airplane"])


def test_c14_a_wrong_folder_is_an_error_that_lists_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        dataset(tmp_path / "nowhere")
    (tmp_path / "readme.md").write_text("something else")
    with pytest.raises(ValueError, match=f"{tmp_path.name}.*modelnet40_train.txt.*readme.md"):
        dataset(tmp_path)
    (tmp_path / "modelnet40_train.txt").write_text("\n")
    (tmp_path / "shape_names.txt").write_text("sofa\n")
    with pytest.raises(ValueError, match="0 clouds"):
        dataset(tmp_path)


def test_c14_the_second_start_reads_the_cache(txt_root, monkeypatch):
    first = dataset(txt_root)
    monkeypatch.setattr(np, "loadtxt", None)  # no text is read any more
    second = dataset(txt_root)
    assert np.array_equal(first[2]["point_clouds"], second[2]["point_clouds"])
    assert first.frame_id(2) == second.frame_id(2)


def test_the_cache_notices_changed_files(txt_root):
    before = dataset(txt_root)[1]["point_clouds"]
    time.sleep(0.01)
    np.savetxt(txt_root / "sofa" / "sofa_0001.txt", cloud("other"), fmt="%.6f", delimiter=",")
    assert not np.allclose(dataset(txt_root)[1]["point_clouds"], before)


@pytest.mark.parametrize(
    "text, message",
    [
        ("1,2,3,4,5,6\n" * 8, "8 rows; 32 are wanted"),
        ("1,2,3\n" * 40, "3 numbers"),
        ("1,2,3,4,5,6\n" * 5 + "1,nan,3,4,5,6\n" * 40, "sofa_0001.txt:6"),
        ("x,y,z\n", "should hold rows"),
    ],
)
def test_a_damaged_file_is_named(txt_root, text, message):
    (txt_root / "sofa" / "sofa_0001.txt").write_text(text)
    with pytest.raises(ValueError, match="sofa_0001") as error:
        dataset(txt_root)
    assert message in str(error.value)


def test_an_absent_file_is_named(txt_root):
    (txt_root / "sofa" / "sofa_0001.txt").unlink()
    with pytest.raises(ValueError, match="sofa_0001.txt is absent"):
        dataset(txt_root)


def test_draws_depend_on_seed_epoch_and_index_only(txt_root):
    augmentation = {"ROTATION": [-3.0, 3.0], "JITTER_SIGMA": 0.01, "SHUFFLE": True}
    data, other = (dataset(txt_root, augmentation=augmentation) for _ in range(2))
    other[0]  # reading another item first changes nothing
    assert np.array_equal(data[1]["point_clouds"], other[1]["point_clouds"])
    other.set_epoch(1)
    assert not np.array_equal(data[1]["point_clouds"], other[1]["point_clouds"])
    still = dataset(txt_root, training=False, augmentation=augmentation)
    assert np.array_equal(still[0]["point_clouds"], dataset(txt_root, training=False)[0]["point_clouds"])


def test_a_batch_and_its_results(txt_root, tmp_path):
    data = build_dataset(
        {"DATASET": "ModelNetDataset", "DATA_PATH": str(txt_root), "NUM_POINTS": 16}, CLASSES, training=False
    )
    batch = data.collate([data[0], data[1]])
    assert batch["point_clouds"].shape == (2, 16, 3) and batch["point_clouds"].dtype == torch.float32
    assert batch["class_labels"].tolist() == [0, 1] and batch["batch_size"] == 2
    scores = ClassScores(torch.tensor([[2.0, 1.0], [0.5, 0.1]]))
    results = data.to_results(batch, scores)
    assert [r["name"] for r in results] == ["night_stand", "night_stand"]
    data.write_results(results, tmp_path / "out")
    assert '"truth": "sofa"' in (tmp_path / "out" / "results.json").read_text()


def test_points_are_chosen_as_the_yaml_says(txt_root):
    whole = cloud("sofa_0001")[:, :3]

    def rows_of(data, index=1):  # which rows of the file an item is made of, by distances that scaling keeps
        points = data[index]["point_clouds"]
        chosen = data.choose(data._kept[index], np.random.default_rng([0, 0, index]) if data.training else None)
        expected = whole[chosen] - whole[chosen].mean(axis=0)
        assert points == pytest.approx(expected / np.linalg.norm(expected, axis=1).max(), abs=1e-5)
        return np.arange(50)[chosen].tolist()

    assert rows_of(dataset(txt_root)) == list(range(32))
    drawn = rows_of(dataset(txt_root, point_choice="random"))
    assert len(set(drawn)) == 32 and drawn != sorted(drawn)
    even = dataset(txt_root, point_choice="random", training=False)
    assert even.choose(0, None).tolist() == [i * 50 // 32 for i in range(32)]
    furthest = rows_of(dataset(txt_root, point_choice="fps", num_points=4))
    reach = [0]
    for _ in range(3):
        reach.append(int(np.linalg.norm(whole[:, None] - whole[reach], axis=2).min(axis=1).argmax()))
    assert furthest == reach
    assert len(dataset(txt_root, point_choice="random", num_points=80)[0]["point_clouds"]) == 80
    with pytest.raises(ValueError, match="50 rows; 80 are wanted"):
        dataset(txt_root, num_points=80)


def test_a_part_of_the_training_set_is_held_out(txt_root):
    train = dataset(txt_root, hold_out=0.3)
    val = dataset(txt_root, hold_out=0.3, training=False, eval_split="val")
    names = [[data.frame_id(i) for i in range(len(data))] for data in (train, val)]
    assert sorted(names[0] + names[1]) == sorted(IDS["train"])
    assert len(names[1]) == 1 and names[1][0].startswith("sofa")  # a class of one cloud is not taken from
    assert len(dataset(txt_root, training=False, eval_split="train")) == 3
    with pytest.raises(ValueError, match="set HOLD_OUT"):
        dataset(txt_root, training=False, eval_split="val")
    with pytest.raises(ValueError, match="EVAL_SPLIT is trian"):
        dataset(txt_root, training=False, eval_split="trian")


def test_votes_turn_the_cloud_and_reorder_its_points(txt_root):
    data = dataset(txt_root, training=False, use_normals=True)
    plain = data[0]["point_clouds"]
    data.vote = Vote(1, 4, turns=True)  # a quarter about y: (x, z) -> (-z, x) for rows multiplied from the left
    turned, order = data[0]["point_clouds"], data.vote_order(0)
    assert sorted(order) == list(range(32)) and order.tolist() != list(range(32))
    for first in (0, 3):
        x, y, z = plain[order, first : first + 3].T
        assert turned[:, first : first + 3] == pytest.approx(np.stack([-z, y, x], axis=1), abs=1e-6)
    results = [[{"index": 0, "logits": np.array(v), "name": ""}] for v in ([1.0, 0.0], [0.0, 3.0])]
    assert data.add_votes(results)[0]["name"] == "sofa"
