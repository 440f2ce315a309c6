"""Label and result files for the metric."""

import numpy as np
import pytest

from pcdet.evaluation.kitti import evaluate, read_annos
from pcdet.evaluation.kitti.files import parse_annos

LINE = "Car 0.10 1 -1.57 10 20 110 120 1.5 1.6 3.9 1 2 30 -1.6"


def test_a_line_by_hand():
    annos = parse_annos(f"DontCare -1 -1 -10 1 2 3 4 -1 -1 -1 -1000 -1000 -1000 -10\n\n{LINE}\n", "x", scored=False)
    assert annos["name"].tolist() == ["DontCare", "Car"]  # file order
    assert annos["dimensions"][1].tolist() == [3.9, 1.5, 1.6]  # l h w
    assert (annos["truncated"][1], annos["occluded"][1], annos["alpha"][1]) == (0.1, 1, -1.57)
    assert annos["bbox"][1].tolist() == [10, 20, 110, 120] and annos["location"][1].tolist() == [1, 2, 30]
    assert annos["rotation_y"][1] == -1.6 and annos["score"].tolist() == [0, 0]
    assert parse_annos(LINE + " 0.25", "x", scored=True)["score"].tolist() == [0.25]
    assert parse_annos("", "x", scored=True)["bbox"].shape == (0, 4)


@pytest.mark.parametrize(
    "line, scored, message",
    [
        (LINE, True, "x:2: the score, field 16, is missing"),
        ("Car 1 2", False, "x:2: 3 fields; KITTI has 15"),
        (LINE.replace("1.6 3.9", "tall 3.9"), False, "x:2: could not convert string to float: 'tall'"),
        (LINE.replace("-1.57", "inf"), False, "x:2: alpha, field 4, is inf; it must be finite"),
        (LINE.replace("110", "nan"), True, "x:2: the score, field 16, is missing"),
        (LINE.replace("110", "nan") + " 0.5", True, "x:2: x2, field 7, is nan"),
        (LINE + " nan", True, "x:2: the score, field 16, is nan"),
    ],
)
def test_malformed_lines_name_their_place(line, scored, message):
    with pytest.raises(ValueError, match=message):
        parse_annos("\n" + line, "x", scored=scored)


def test_a_box_in_space_that_is_not_finite_and_the_score_of_a_label_are_read(tmp_path):
    """KITTI's devkit goes on with the first; it reads no score in a label file."""
    assert np.isnan(parse_annos(LINE.replace("3.9", "nan"), "x", scored=False)["dimensions"][0, 0])
    assert parse_annos(LINE + " nan", "x", scored=False)["score"].tolist() == [0]


def test_a_byte_order_mark_and_other_line_ends_are_no_part_of_a_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(f"\ufeff{LINE}\r\n{LINE}\r\n".encode())
    assert read_annos(tmp_path, ["a"], scored=False)[0]["name"].tolist() == ["Car", "Car"]


def test_files_of_folders_are_evaluated(tmp_path):
    for f in range(41):
        for folder, line in (("labels", LINE), ("results", f"{LINE} {f / 41}")):
            path = tmp_path / folder / f"{f:06d}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(line)
    ids = [f"{f:06d}" for f in range(41)]
    truth = read_annos(tmp_path / "labels", ids, scored=False)
    found = read_annos(tmp_path / "results", ids, scored=True)
    assert evaluate(truth, found, ["Car"]).metrics["Car_3d/moderate_R40"] == 100


def test_a_missing_result_file_is_an_error_unless_it_may_stand_for_no_detection(tmp_path):
    (tmp_path / "000000.txt").write_text(LINE + " 0.5")
    with pytest.raises(FileNotFoundError, match=r"000001.txt is missing \(2 of 3 files are\)"):
        read_annos(tmp_path, ["000000", "000001", "000002"], scored=True)
    frames = read_annos(tmp_path, ["000000", "000001"], scored=True, missing_is_empty=True)
    assert [len(f["name"]) for f in frames] == [1, 0] and frames[1]["frame_id"] == "000001"
    np.testing.assert_array_equal(frames[1]["score"], np.zeros(0))
