"""Single files of any sensor."""

import logging

import numpy as np
import pytest

from pcdet.datasets.cloud_formats import read_points
from pcdet.datasets.clouds import CloudFiles, cloud_files

FEATURES = ("x", "y", "z", "intensity")


def points(count: int = 50) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.uniform([2, -20, -2, 0], [60, 20, 0.5, 1], (count, 4))


def dataset(data_settings, *files) -> CloudFiles:
    return CloudFiles(files, data_settings, ["Car"], logging.getLogger("pcdet"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_c7_any_number_type_and_memory_order_gives_the_same_points(tmp_path, dtype, order):
    np.save(tmp_path / "a.npy", np.asarray(points(), dtype=dtype, order=order))
    read, dropped = read_points(tmp_path / "a.npy", FEATURES)
    assert read.dtype == np.float32 and read.flags.c_contiguous and dropped == 0
    np.testing.assert_allclose(read, points(), atol=1e-5)


def test_c7_other_shapes_are_errors_with_the_file(tmp_path):
    np.save(tmp_path / "flat.npy", points().reshape(-1))
    np.save(tmp_path / "few.npy", points()[:, :3])
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    for name in ("flat", "few", "objects"):
        with pytest.raises(ValueError, match=f"{name}.npy"):
            read_points(tmp_path / f"{name}.npy", FEATURES)


def test_files_become_items_of_a_model(tmp_path, data_settings):
    points().astype(np.float32).tofile(tmp_path / "b.bin")
    np.save(tmp_path / "a.npy", points())
    np.zeros((0, 4), np.float32).tofile(tmp_path / "empty.bin")
    (tmp_path / "notes.txt").write_text("")
    data = dataset(data_settings, *cloud_files(tmp_path))
    assert [data[i]["frame_id"] for i in range(len(data))] == ["a", "b", "empty"]
    batch = data.collate([data[i] for i in range(3)])
    assert batch["batch_size"] == 3 and "gt_boxes" not in batch and batch["calib"] == [None] * 3
    assert (batch["points"][:, 0] == 0).sum() == (batch["points"][:, 0] == 1).sum() > 0
    assert data.info.grid_size == (432, 496, 1)


def test_odd_clouds_are_named(tmp_path, data_settings, caplog):
    rows = points() * [1, 1, 1, 255]
    rows[0, 0] = np.nan
    np.save(tmp_path / "a.npy", rows)
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        dataset(data_settings, tmp_path / "a.npy")[0]
        text = caplog.text
        assert "1 points are NaN" in text and "INTENSITY_SCALE" in text
        caplog.clear()
        scaled = dataset({**data_settings, "INTENSITY_SCALE": 1 / 255}, tmp_path / "a.npy")[0]["points"]
        assert "INTENSITY_SCALE" not in caplog.text
    assert 0 <= scaled[:, 3].min() and scaled[:, 3].max() <= 1


def test_c14_a_folder_without_clouds_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path.name} is neither.*.bin, .npy"):
        cloud_files(tmp_path)
