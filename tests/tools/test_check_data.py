"""The check of data as a command: what it says and its exit code, on clean and on broken folders."""

import shutil

import numpy as np
import pytest

from pcdet.datasets.synthetic import simulate_custom, simulate_kitti
from pcdet.visual.report import Picture, Row, write_report

OWN = ["--cfg_file", "cfgs/custom_models/pv_rcnn.yaml"]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Four simulated frames in the custom layout, two in KITTI's."""
    folder = tmp_path_factory.mktemp("simulated")
    simulate_custom(folder / "custom", 4, 0, 0.25)
    simulate_kitti(folder / "kitti", 2, 0, 0.5, fov_only=True)
    return folder


@pytest.fixture
def custom(simulated, tmp_path):
    """A copy of the custom folder to break."""
    return shutil.copytree(simulated / "custom", tmp_path / "custom")


@pytest.fixture
def check(tools, tmp_path, capsys):
    """``check(folder, *options)``: exit code, printed lines, and the report."""

    def run(folder, *options):
        report = tmp_path / "report.html"
        code = tools("check_data")(["--data_path", str(folder), "--out", str(report), "--pictures", "1", *options])
        return code, capsys.readouterr().out.splitlines(), report.read_text()

    return run


@pytest.mark.parametrize("options", [[], OWN])
def test_simulated_own_data_have_no_problem_that_harms(simulated, check, options):
    code, lines, report = check(simulated / "custom", *options)
    assert code == 0 and "4 frames (train, val)" in lines[0] and "Vehicle" in lines[0]
    assert not [line for line in lines if line.startswith(("BREAKS", "harms"))]
    assert report.count("data:image/png;base64,") == 1 and "http" not in report


@pytest.mark.parametrize("options", [[], ["--cfg_file", "cfgs/kitti_models/pv_rcnn.yaml"]])
def test_simulated_kitti_data_have_no_problem_that_harms(simulated, check, options):
    code, lines, _ = check(simulated / "kitti", *options)
    assert code == 0 and "(KITTI): 2 frames (train, val)" in lines[0]
    assert not [line for line in lines if line.startswith(("BREAKS", "harms"))]


def test_every_broken_line_and_file_is_one_problem_and_the_worst_comes_first(custom, check):
    broken = custom / "labels" / "000000.txt"
    broken.write_text(broken.read_text() + "1 2 3 4 5\n1 2 3 4 5 6 x Vehicle\n1 2 3 0 5 6 0 Vehicle\n")
    count = len(broken.read_text().splitlines())
    (custom / "points" / "000001.npy").write_bytes(b"no array")
    (custom / "labels" / "000002.txt").unlink()
    code, lines, report = check(custom, *OWN)
    assert code == 1
    bad = [line for line in lines if line.startswith("BREAKS")]
    assert len(bad) == 4 and lines[1:5] == bad
    assert sum(f"000000.txt:{count - 2}: a label is" in line for line in bad) == 1
    assert sum(f"000000.txt:{count - 1}: could not convert string to float: 'x'" in line for line in bad) == 1
    assert sum("000001.npy" in line for line in bad) == 1 and sum("000002.txt are missing" in line for line in bad) == 1
    assert sum(f"000000.txt:{count}: Vehicle left out, its size is 0 x 5 x 6" in line for line in lines) == 1
    assert lines[-1].startswith("4 BREAKS, 1 harms") and report.index("BREAKS") < report.index("harms")


def test_a_configuration_that_does_not_fit_the_data_breaks_training(simulated, check):
    options = ["--set", "CLASS_NAMES", "[Car, Truck, Bus]", "DATA_CONFIG.POINT_CLOUD_RANGE", "[-75.2,-75,1,75,75,7]"]
    code, lines, _ = check(simulated / "custom", *OWN, *options)
    text = "\n".join(line for line in lines if line.startswith("BREAKS"))
    assert code == 1
    assert "0 usable objects: CLASS_NAMES is ['Car', 'Truck', 'Bus']" in text
    assert "multiple of 16" in text and "the ground lies at z = " in text


def test_a_mirrored_label_file_is_found_in_simulated_scans(custom, check):
    for path in (custom / "labels").iterdir():
        rows = [line.split() for line in path.read_text().splitlines()]
        path.write_text("".join(" ".join([*r[:6], str(-float(r[6])), r[7]]) + "\n" for r in rows))
    code, lines, _ = check(custom)
    assert code == 1 and any("hold more points mirrored" in line for line in lines)


def test_a_table_of_labels_that_names_other_frames_is_found(custom, check):
    for path in (custom / "labels").iterdir():
        path.unlink()
    (custom / "labels.csv").write_text("frame,class,x,y,z,l,w,h,yaw\nscan_0.pcd,Vehicle,5,0,1,4,2,1.5,0\n")
    code, lines, _ = check(custom)
    assert code == 1 and any("labels frames such as 'scan_0', clouds are called such as '000000'" in x for x in lines)


def test_a_table_that_labels_some_frames_without_a_cloud_loses_them(custom, check):
    rows = ["frame,class,x,y,z,l,w,h,yaw\n"]
    for path in sorted((custom / "labels").iterdir()):
        fields = [line.split() for line in path.read_text().splitlines()]
        rows += [f"{path.stem.replace('000000', '0')},{f[7]},{','.join(f[:7])}\n" for f in fields]
        path.unlink()
    (custom / "labels.csv").write_text("".join(rows))
    code, lines, _ = check(custom)
    expected = "labels frames such as '0', clouds are called such as '000000': 1 of 4 have no cloud"
    assert code == 0 and f"harms   files: {custom}/labels.csv {expected}" in lines


def test_a_table_without_a_column_is_one_problem(custom, check):
    (custom / "labels.csv").write_text("frame,class,x,y,z,l,w,h,phi\n0,Car,1,2,3,4,5,6,7\n")
    code, lines, _ = check(custom)
    found = [line for line in lines if "no column is called heading or yaw" in line]
    assert code == 1 and len(found) == 1 and found[0].endswith("(4 frames)")


def test_lists_that_training_needs_and_clouds_that_no_list_names(custom, check):
    """Training opens the frames to evaluate on before it begins."""
    (custom / "ImageSets" / "val.txt").unlink()
    code, lines, _ = check(custom)
    assert code == 1 and f"BREAKS  files: {custom}/ImageSets lacks val.txt: there the frames to evaluate on" in lines[1]
    assert any(f"1 of 4 clouds, such as '000003', are in no list of {custom}/ImageSets" in line for line in lines)
    more = ["--set", "DATA_CONFIG.DATA_SPLIT.test", "train", "DATA_CONFIG.INFO_PATH.test", "[custom_infos_train.pkl]"]
    code, lines, _ = check(custom, *OWN, *more)
    assert code == 0 and not any("lacks" in line for line in lines)


def test_headings_in_degrees_are_guessed_from_the_folder_alone(custom, check):
    for path in (custom / "labels").iterdir():
        rows = [line.split() for line in path.read_text().splitlines()]
        path.write_text("".join(" ".join([*r[:6], str(np.rad2deg(float(r[6]))), r[7]]) + "\n" for r in rows))
    code, lines, _ = check(custom)
    assert code == 0 and "headings in degrees" in lines[0] and not any("convention" in line for line in lines)


def test_a_frame_in_both_splits_and_a_repeated_cloud_are_found(custom, check):
    (custom / "ImageSets" / "val.txt").write_text((custom / "ImageSets" / "train.txt").read_text())
    shutil.copy(custom / "points" / "000000.npy", custom / "points" / "000001.npy")
    _, lines, _ = check(custom)
    assert any(line.startswith("harms   leaks: ") for line in lines)
    assert any("repeat others: 000000 = 000001" in line for line in lines)


def test_a_test_frame_of_the_same_number_is_another_frame(simulated, tmp_path, check):
    root = shutil.copytree(simulated / "kitti", tmp_path / "kitti")
    for folder in ("velodyne", "calib"):
        shutil.copytree(root / "training" / folder, root / "testing" / folder)
    other = root / "testing" / "velodyne" / "000000.bin"
    np.fromfile(other, dtype=np.float32).reshape(-1, 4)[::2].tofile(other)
    (root / "ImageSets" / "test.txt").write_text("000000\n")
    code, lines, _ = check(root)
    assert code == 0 and "3 frames (test, train, val)" in lines[0]
    assert not any("leaks" in line for line in lines)


def test_a_folder_of_another_layout_is_looked_at_as_clouds(custom, check):
    code, lines, _ = check(custom / "points", *OWN)
    assert code == 1 and "clouds alone" in lines[0]
    assert lines[1].startswith("BREAKS  files: CustomDataset needs ") and "it is missing" in lines[1]


def test_of_many_frames_some_are_read(simulated, check):
    _, lines, _ = check(simulated / "custom", "--max_frames", "2")
    assert ": 2 frames" in lines[0]


def test_neither_folder_nor_configuration_is_an_error(tools, capsys):
    with pytest.raises(SystemExit):
        tools("check_data")([])
    assert "--cfg_file or --data_path is needed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        tools("check_data")(["--data_path", "somewhere", "--max_frames", "0"])
    assert "argument --max_frames: 0 is less than 1" in capsys.readouterr().err


def test_text_of_files_cannot_become_markup(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG")
    rows = [Row(0, "BREAKS", "files", "<script>alert(1)</script>")]
    page = write_report(tmp_path / "r.html", "a & b", ["<b>"], rows, [Picture(picture, '"quoted"')]).read_text()
    assert "<script" not in page and "a &amp; b" in page and "&quot;quoted&quot;" in page
    assert "data:image/png;base64,iVBORw==" in page
