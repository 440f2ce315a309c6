"""tools/evaluate.py: KITTI folders in, the table and the numbers of the recorded form out."""

import json
import tarfile

import numpy as np
import pytest

LINE = "Car 0.00 0 -1.57 10 20 110 120 1.5 1.6 3.9 1 2 {z} -1.6"


@pytest.fixture
def folders(tmp_path):
    """41 frames of one car, found in all but the last, which has an empty result file."""
    for frame in range(41):
        line = LINE.format(z=20 + frame)
        for folder, text in (("label_2", line), ("pred", f"{line} {1 - frame / 100}" if frame < 40 else "")):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{frame:06d}.txt").write_text(text)
    return tmp_path


def options(folder, *more):
    return ["--gt", str(folder / "label_2"), "--pred", str(folder / "pred"), *map(str, more)]


def test_the_table_and_the_json(tools, folders, capsys):
    out = folders / "out" / "numbers.json"
    assert tools("evaluate")(options(folders, "--json", out)) == 0
    text = capsys.readouterr().out
    assert "Car AP_R40@0.70, 0.70, 0.70:" in text and "KITTI metric over 41 frames" in text
    written = json.loads(out.read_text())
    assert written["ap"]["3d"]["Car"] == {"R11": [100 * 10 / 11] * 3, "R40": [97.5] * 3}
    assert written["ap_loose"]["aos"]["Car"] == written["ap"]["aos"]["Car"] == written["ap"]["bev"]["Car"]
    assert written["ap"]["bbox"]["Pedestrian"] == {"R11": None, "R40": None}
    assert written["frames"] == 41 and written["ground_truths"] == {"Car": [41] * 3, "Pedestrian": [0] * 3} | {
        "Cyclist": [0] * 3
    }
    assert written["min_overlap"]["3d"]["Car"] == 0.7 and written["min_overlap_loose"]["3d"]["Car"] == 0.5


def test_a_missing_file_is_an_error_that_says_what_to_do(tools, folders, capsys):
    (folders / "pred" / "000040.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"000040.txt is missing \(1 of 41 files are\).*--missing_is_empty"):
        tools("evaluate")(options(folders))
    tools("evaluate")(options(folders, "--missing_is_empty"))
    assert "97.50" in capsys.readouterr().out


def test_chosen_frames_and_results_that_nobody_asked_for(tools, folders, capsys):
    listed = folders / "val.txt"
    listed.write_text("000003\n000005\n")
    (folders / "pred" / "000040.txt").unlink()
    tools("evaluate")(options(folders, "--frames", listed, "--classes", "car"))
    text = capsys.readouterr().out
    assert "over 2 frames" in text and "38 result files, such as 000000.txt, belong to no frame" in text
    assert "2/2/2" in text and "Pedestrian" not in text


def test_a_frame_that_is_listed_twice_is_refused(tools, folders):
    (folders / "val.txt").write_text("000003\n000005\n000003\n")
    with pytest.raises(ValueError, match="val.txt:3: frame 000003 stands on line 1 already"):
        tools("evaluate")(options(folders, "--frames", folders / "val.txt"))


@pytest.mark.parametrize("more", [["--clouds", "x"], ["--score_thresh", "0.5"]])
def test_options_of_the_analysis_are_refused_without_it(tools, folders, capsys, more):
    with pytest.raises(SystemExit):
        tools("evaluate")(options(folders, *more))
    assert f"{more[0]}: only --analysis uses this" in capsys.readouterr().err


def test_what_each_filter_takes_away_is_in_the_table_and_in_the_json(tools, folders, capsys):
    """One car is hidden; one detection is too low; another lies in a DontCare region, which is told of bbox alone."""
    label = folders / "label_2" / "000000.txt"
    label.write_text(
        f"{label.read_text().replace(' 0 -1.57', ' 3 -1.57')}\nDontCare -1 -1 -10 500 20 600 120{' -1' * 7}"
    )
    found = folders / "pred" / "000001.txt"
    low, beside = "Car 0 0 0 300 20 400 50", "Car 0 0 0 500 20 600 120"
    found.write_text(found.read_text() + "".join(f"\n{head} 1.5 1.6 3.9 50 2 9 0 0.1" for head in (low, beside)))
    (folders / "pred" / "000000.txt").write_text(f"{beside} 1.5 1.6 3.9 50 2 9 0 0.1")
    tools("evaluate")(options(folders, "--classes", "Car", "--json", folders / "out.json"))
    line = next(row for row in capsys.readouterr().out.splitlines() if "left out" in row)
    assert line == (
        "Car, left out: ground truths 1/1/1 too occluded; detections 1/0/0 too low in the image, 1/1/1 in DontCare "
        "regions (no false alarms of bbox)"
    )
    written = json.loads((folders / "out.json").read_text())
    assert written["ground_truths_left_out"]["Car"]["too occluded"] == [1, 1, 1]
    assert written["detections_left_out"]["Car"]["too low in the image"] == [1, 0, 0]


def test_folders_in_kittis_layout(tools, folders, capsys):
    (folders / "results").mkdir()
    (folders / "pred").rename(folders / "results" / "data")
    tools("evaluate")(["--gt", str(folders), "--pred", str(folders / "results")])
    assert "over 41 frames" in capsys.readouterr().out


def test_a_folder_that_is_not_there_or_empty(tools, folders, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        tools("evaluate")(["--gt", str(tmp_path / "nowhere"), "--pred", str(folders / "pred")])
    (tmp_path / "void").mkdir()
    with pytest.raises(ValueError, match="void names no frame"):
        tools("evaluate")(["--gt", str(tmp_path / "void"), "--pred", str(folders / "pred")])


@pytest.mark.parametrize("name", ["b14_synth60_mixed", "c38_only_dontcare_gt", "c11_all_frames_empty"])
def test_a_recorded_set_from_the_command_line(tools, shared, tmp_path, name):
    folder = shared / "oracles" / "kitti_eval" / "sets"
    with tarfile.open(folder / f"{name}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    inner = next(path.parent for path in tmp_path.rglob("label_2"))
    tools("evaluate")(options(inner, "--json", tmp_path / "out.json"))
    recorded, ours = json.loads((folder / f"{name}.json").read_text()), json.loads((tmp_path / "out.json").read_text())
    for table in ("ap", "ap_loose"):
        assert ours[table].keys() == recorded[table].keys()
        for metric, classes in recorded[table].items():
            for class_name, kinds in classes.items():
                for kind, values in kinds.items():
                    found = ours[table][metric][class_name][kind]
                    assert (found is None) == (values is None)
                    np.testing.assert_allclose(np.array(found, float), np.array(values, float), rtol=0, atol=1e-6)


def test_a_set_with_a_missing_result_file(tools, shared, tmp_path):
    with tarfile.open(shared / "oracles" / "kitti_eval" / "sets" / "c53_missing_pred_file.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    inner = next(path.parent for path in tmp_path.rglob("label_2"))
    with pytest.raises(FileNotFoundError, match="is missing"):
        tools("evaluate")(options(inner))


def test_the_analysis_beside_it(tools, folders, capsys):
    out = folders / "analysis"
    tools("evaluate")(options(folders, "--analysis", out, "--json", folders / "all.json", "--score_thresh", "0.8"))
    text = capsys.readouterr().out
    assert "Analysis of 41 frames" in text and (out / "analysis.txt").read_text().strip() in text
    assert {path.suffix for path in out.iterdir()} == {".txt", ".json", ".png"} and len(list(out.glob("*.png"))) == 4
    assert json.loads((out / "analysis.json").read_text()) == json.loads((folders / "all.json").read_text())["analysis"]
    # Scores fall by a hundredth a frame: 21 are 0.8 or more.
    assert json.loads((out / "analysis.json").read_text())["classes"]["Car"]["bands"][0]["found"] == 21
