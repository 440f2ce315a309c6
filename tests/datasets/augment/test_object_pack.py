"""The database's objects in one mapped array: the files of OpenPCDet's layout stay as they are."""

import logging
import pickle

import numpy as np
import pytest

from pcdet.datasets.augment import database
from pcdet.datasets.augment.gt_sampling import GtSampling
from pcdet.datasets.augment.registry import AugmentContext
from pcdet.datasets.cache_folder import FOLDER
from pcdet.datasets.whole_clouds import packs
from pcdet.utils.files import write_pickle


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Forty cars with 2,000 points each, one without points, and three vans."""
    monkeypatch.setattr(packs.Path, "home", lambda: tmp_path / "home")
    folder = tmp_path / "data" / "gt_database"
    folder.mkdir(parents=True)
    rng, index = np.random.default_rng(0), {}
    for name, count in (("Car", 41), ("Van", 3)):
        for i in range(count):
            points = rng.uniform(-0.5, 0.5, (0 if i == 40 else 2000, 4)).astype(np.float32)
            points.tofile(folder / f"{name}_{i}.bin")
            box = np.array([6 + 8 * (i % 7), 8 * (i // 7) - 20, -0.9, 3.9, 1.6, 1.5, 0.0])
            index.setdefault(name, []).append(
                {"name": name, "path": f"gt_database/{name}_{i}.bin", "box3d_lidar": box, "num_points_in_gt": 2000}
            )
    write_pickle(tmp_path / "data" / "db.pkl", index)
    return tmp_path / "data"


def sampler(root, classes=("Car",), **options):
    context = AugmentContext(root, classes, 4, logging.getLogger("pcdet"))
    return GtSampling(context, db_info_path=["db.pkl"], sample_groups=["Car:15", "Van:3"], **options)


def no_second_reading(*_arguments):
    raise AssertionError("an object's file was read again")


def test_objects_come_from_one_mapped_file_and_their_own_files_stay(root, monkeypatch):
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (root / "gt_database").iterdir()}
    sampler(root)
    monkeypatch.setattr(database, "read_object", no_second_reading)
    objects = sampler(root).database
    assert isinstance(objects.pack.points, np.memmap)
    points, counts = objects.points(objects.places["Car"][[7, 40, 2]])
    assert counts.tolist() == [2000, 0, 2000]
    expected = [np.fromfile(root / "gt_database" / f"Car_{i}.bin", np.float32).reshape(-1, 4) for i in (7, 40, 2)]
    np.testing.assert_array_equal(points, np.concatenate(expected))
    points[:] = 0  # a copy
    np.testing.assert_array_equal(objects.points(objects.places["Car"][[7]])[0], expected[0])
    assert before == {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (root / "gt_database").iterdir()}


def test_other_classes_and_filters_share_the_file(root, monkeypatch):
    sampler(root)
    monkeypatch.setattr(database, "read_object", no_second_reading)
    assert len(sampler(root, classes=("Car", "Van")).database) == 44
    assert len(sampler(root, prepare={"filter_by_min_points": ["Car:2001"]}).database) == 0
    assert len(list((root / FOLDER).iterdir())) == 1


def test_a_changed_object_is_packed_anew(root):
    sampler(root)
    np.full((5, 4), 0.25, np.float32).tofile(root / "gt_database" / "Car_3.bin")
    objects = sampler(root).database
    assert objects.points(objects.places["Car"][[3]])[0].tolist() == [[0.25] * 4] * 5


def test_a_missing_file_matters_only_to_who_wants_it(root):
    (root / "gt_database" / "Van_1.bin").unlink()
    assert len(sampler(root).database) == 41
    with pytest.raises(FileNotFoundError, match=r"Van_1.bin is missing.*create_data.py"):
        sampler(root, classes=("Car", "Van"))


def test_what_goes_to_a_loader_process_is_small(root):
    sent = pickle.dumps(sampler(root).database)
    assert len(sent) < 30_000  # the points are 1.3 MB
    objects = pickle.loads(sent)  # noqa: S301
    assert isinstance(objects.pack.points, np.memmap) and len(objects) == 41


def test_without_a_place_for_the_file_the_objects_are_read_into_memory(root, scene, caplog, monkeypatch):
    expected = sampler(root)(scene, np.random.default_rng(0))
    for path in (root / FOLDER, root.parent / "home" / ".cache"):
        if path.exists():
            path.rename(path.with_name("moved"))
        path.parent.mkdir(exist_ok=True)
        path.write_text("a file where the folder should be")
    monkeypatch.setattr(logging.getLogger("pcdet"), "propagate", True)
    paste = sampler(root)
    assert "read into memory" in caplog.text and not isinstance(paste.database.pack.points, np.memmap)
    for one in (paste, pickle.loads(pickle.dumps(paste))):  # noqa: S301
        np.testing.assert_array_equal(one(scene, np.random.default_rng(0)).points, expected.points)
