"""Packs: what is read once comes back, stale ones go, and a folder that cannot be written to is no obstacle."""

import logging

import numpy as np
import pytest

from pcdet.datasets.cache_folder import FOLDER
from pcdet.datasets.whole_clouds import packs
from pcdet.datasets.whole_clouds.packs import Cloud, packed
from pcdet.datasets.whole_clouds.selection import held_out

LOGGER = logging.getLogger("pcdet")


@pytest.fixture
def files(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    for i in range(3):
        (root / f"{i}.txt").write_text(" ".join(map(str, range(3 * (i + 1)))))
    return sorted(root.glob("*.txt"))


def read(path):
    """A cloud of as many points as the file's number says, and one point more, labelled with its row."""
    points = np.array(path.read_text().split(), dtype=np.float32).reshape(-1, 3)
    return [Cloud(path.stem, points, len(points), np.arange(len(points)) - 1)]


def make(files, reader=read, facts=()):
    return packed("test", files, reader, files[0].parent, LOGGER, facts)


def forbidden(path):
    raise AssertionError(f"{path} was read again")


def test_what_was_read_comes_back_from_the_pack(files):
    for pack in (make(files), make(files, forbidden)):
        assert len(pack) == 3 and pack.labels.tolist() == [1, 2, 3] and pack.names == ("0", "1", "2")
        assert pack.cloud(1).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert pack.labels_of_points(2).tolist() == [-1, 0, 1]
        assert isinstance(pack.points, np.memmap) and not pack.points.flags.writeable


def test_a_changed_file_is_read_again_and_the_old_pack_goes(files):
    make(files)
    files[0].write_text("7 8 9")
    assert make(files).cloud(0).tolist() == [[7, 8, 9]]
    folder = files[0].parent / FOLDER
    assert len(list(folder.iterdir())) == 1  # nothing temporary either
    make(files, facts=["another order of classes"])
    assert len(list(folder.iterdir())) == 1


def test_a_failed_reading_leaves_nothing(files):
    with pytest.raises(AssertionError, match="read again"):
        make(files, forbidden)
    assert list((files[0].parent / FOLDER).iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_passed_over(files, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(packs.Path, "home", lambda: tmp_path / "home")
    (files[0].parent / FOLDER).write_text("a file where the folder should be")
    monkeypatch.setattr(LOGGER, "propagate", True)
    with caplog.at_level(logging.WARNING, logger="pcdet"):
        assert len(make(files)) == 3
    assert "cannot be written to" in caplog.text
    assert len(make(files, forbidden)) == 3
    (tmp_path / "home" / ".cache" / "pcdet").rename(tmp_path / "moved")
    (tmp_path / "home" / ".cache" / "pcdet").write_text("no folder either")
    with pytest.raises(OSError, match="can be written to none of"):
        make(files)


def test_the_furthest_points_are_kept(files, monkeypatch):
    pack = make(files[2:])  # (0 1 2), (3 4 5), (6 7 8): the last is furthest from the first
    assert pack.furthest(2).tolist() == [[0, 2]]
    monkeypatch.setattr(packs, "furthest_point_sample", None)
    assert make(files[2:]).furthest(2).tolist() == [[0, 2]]


def test_shares_held_out_by_hand():
    groups = np.array([0] * 10 + [1] * 3 + [2])
    mask = held_out(groups, 0.2)
    assert [int(mask[groups == g].sum()) for g in range(3)] == [2, 1, 0]
    assert np.array_equal(mask, held_out(groups, 0.2)) and not held_out(groups, 0.0).any()
    with pytest.raises(ValueError, match="HOLD_OUT is 1.0"):
        held_out(groups, 1.0)
