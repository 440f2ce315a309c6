"""Files are written whole or not at all, and pickles hold data only."""

import os
import pickle

import numpy as np
import pytest

from pcdet.utils.files import atomic_open, read_pickle, read_text, write_json, write_pickle


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_open(path) as file:
        file.write(b"new")
        raise RuntimeError("killed")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.bin"]


def test_a_write_makes_its_folder_and_replaces(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    for text in ("one", "two"):
        with atomic_open(path, "w") as file:
            file.write(text)
    assert path.read_text() == "two"
    assert os.stat(path).st_mode & 0o044  # readable by others as the umask says, unlike a temporary file


def test_a_text_of_other_tools_is_read_without_its_byte_order_mark_or_refused_by_name(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfr\xc3\xa4der\r\n")
    assert read_text(path) == "räder\n"
    path.write_bytes("räder".encode("latin1"))
    with pytest.raises(ValueError, match=r"a.txt is not text in UTF-8 \(.* at byte 1\); save it"):
        read_text(path)


def test_json_of_numpy(tmp_path):
    write_json(tmp_path / "a.json", {"x": np.float32(0.5), "y": np.arange(2)})
    assert (tmp_path / "a.json").read_text().split() == ["{", '"x":', "0.5,", '"y":', "[", "0,", "1", "]", "}"]


def test_pickle_round_trip(tmp_path):
    value = [{"name": np.array(["Car"]), "box": np.zeros((1, 7), np.float32), "n": np.int64(3), "id": "000001"}]
    write_pickle(tmp_path / "a.pkl", value)
    back = read_pickle(tmp_path / "a.pkl")
    assert back[0]["name"].tolist() == ["Car"] and back[0]["box"].dtype == np.float32 and back[0]["n"] == 3


class Runs:
    def __reduce__(self):
        return os.system, ("touch should_not_exist",)


def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps({"a": Runs()}))
    with pytest.raises(ValueError, match=r"bad\.pkl cannot be read as data: it names .*system"):
        read_pickle(tmp_path / "bad.pkl")
    assert not (tmp_path / "should_not_exist").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04garbage", b"not a pickle"])
def test_damaged_pickles_name_the_file(tmp_path, content):
    (tmp_path / "bad.pkl").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.pkl cannot be read"):
        read_pickle(tmp_path / "bad.pkl")


@pytest.mark.parametrize("name", ["kitti_infos_train.pkl", "kitti_dbinfos_train.pkl"])
def test_recorded_info_files_load(shared, name):
    assert len(read_pickle(shared / "oracles/openpcdet_data" / name)) > 0
