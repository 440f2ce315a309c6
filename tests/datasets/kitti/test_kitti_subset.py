"""A few frames of a KITTI folder as a folder of their own."""

import pytest

from pcdet.datasets.kitti.infos import create_infos
from pcdet.datasets.kitti.labels import read_labels
from pcdet.datasets.kitti.subset import copy_subset
from pcdet.utils.files import read_pickle


def test_a_subset_is_whole_and_its_own(small_kitti, tmp_path):
    first = (small_kitti / "ImageSets" / "train.txt").read_text().split()[0]
    assert copy_subset(small_kitti, tmp_path, 1) == [first]
    for folder, suffix in (("velodyne", ".bin"), ("calib", ".txt"), ("label_2", ".txt")):
        copied = [p.name for p in (tmp_path / "training" / folder).iterdir()]
        assert copied == [f"{first}{suffix}"]
        source = small_kitti / "training" / folder / copied[0]
        assert (tmp_path / "training" / folder / copied[0]).read_bytes() == source.read_bytes()
    create_infos(tmp_path)
    for split in ("train", "val", "trainval"):
        infos = read_pickle(tmp_path / f"kitti_infos_{split}.pkl")
        assert [i["point_cloud"]["lidar_idx"] for i in infos] == [first]


def test_frames_may_be_asked_to_hold_a_class(small_kitti, tmp_path):
    names = (small_kitti / "ImageSets" / "train.txt").read_text().split()
    labels = {n: {o.name for o in read_labels(small_kitti / "training" / "label_2" / f"{n}.txt")[0]} for n in names}
    wanted = next(c for found in labels.values() for c in found if c != "DontCare")
    assert wanted in labels[copy_subset(small_kitti, tmp_path, 1, wanted)[0]]


def test_too_few_frames_are_an_error(small_kitti, tmp_path):
    with pytest.raises(ValueError, match="has 0 training frames with a Tram, 1 are asked for"):
        copy_subset(small_kitti, tmp_path, 1, "Tram")
    assert not (tmp_path / "training").exists()
