"""Label formats: the same two boxes in each, and what is said of broken files."""

import json

import numpy as np
import pytest

from pcdet.datasets.cloud_formats import CloudLayout
from pcdet.datasets.custom.folder import CustomFolder
from pcdet.datasets.custom.reading import CustomReader
from pcdet.datasets.custom.sweeps import read_sweeps
from pcdet.structures.boxes import boxes_to_kitti_camera
from pcdet.structures.calibration import Calibration

BOXES = np.array([[8.0, 1.0, 0.8, 4.0, 1.8, 1.6, 0.5], [-5.0, 4.0, 0.85, 0.8, 0.6, 1.7, -2.0]])
NAMES = ["Vehicle", "Pedestrian"]
CALIB = """P2: 700 0 600 0 0 700 180 0 0 0 1 0
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0.1 0 0 -1 -0.2 1 0 0 0.3
"""
KITTI = "{} 0 0 0 0 0 0 0 {:.8f} {:.8f} {:.8f} {:.8f} {:.8f} {:.8f} {:.8f}\n"
CSV = "frame,Class,x,y,z,length,width,height,yaw\n"


@pytest.fixture
def folder(tmp_path):
    for name in ("labels", "calib", "points", "sweeps"):
        (tmp_path / name).mkdir()
    (tmp_path / "calib" / "a.txt").write_text(CALIB)
    return CustomFolder(tmp_path)


def reader(folder, kind, **options):
    return CustomReader(folder, CloudLayout(("x", "y", "z", "intensity")), label_format=kind, **options)


def openpcdet(root):
    rows = zip(BOXES, NAMES, strict=True)
    (root / "labels/a.txt").write_text("".join(" ".join(map(str, box)) + f" {name}\n\n" for box, name in rows))


def kitti(root):
    camera = boxes_to_kitti_camera(BOXES, Calibration.from_file(root / "calib/a.txt"))
    rows = [KITTI.format(n, dz, dy, dx, x, y, z, r) for n, (x, y, z, dx, dz, dy, r) in zip(NAMES, camera, strict=True)]
    (root / "labels/a.txt").write_text("DontCare -1 -1 -10 1 1 9 9 -1 -1 -1 -1000 -1000 -1000 -10\n" + "".join(rows))


def kitti_lidar(root):
    rows = [KITTI.format(n, dz, dy, dx, x, y, z, r) for n, (x, y, z, dx, dy, dz, r) in zip(NAMES, BOXES, strict=True)]
    (root / "labels/a.txt").write_text("".join(rows))


def labelcloud(root):
    objects = [labelcloud_object(name, box) for name, box in zip(NAMES, BOXES, strict=True)]
    (root / "labels/a.json").write_text(json.dumps({"folder": "points", "filename": "a.pcd", "objects": objects}))


def labelcloud_object(name, box, tilt=0.0):
    return {
        "name": name,
        "centroid": dict(zip("xyz", box[:3], strict=True)),
        "dimensions": dict(zip(("length", "width", "height"), box[3:6], strict=True)),
        "rotations": {"x": tilt, "y": 360.0, "z": float(np.rad2deg(box[6])) % 360},
    }


def csv_lines(frame):
    rows = zip(NAMES, BOXES, strict=True)
    return "".join(f"{frame},{name},{','.join(map(str, box))}\n" for name, box in rows)


def csv_of_a_frame(root):
    (root / "labels/a.csv").write_text((CSV + csv_lines("0")).replace(",", "; "))


def csv_of_all(root):
    (root / "labels.csv").write_text(CSV + csv_lines("points/b.pcd") + csv_lines("a.pcd") + "\n")


@pytest.mark.parametrize("write", [openpcdet, kitti, kitti_lidar, labelcloud, csv_of_a_frame, csv_of_all])
def test_the_same_boxes_come_out_of_every_format(folder, write):
    write(folder.root)
    labels = reader(folder, write.__name__.split("_of_")[0]).labels("a")
    assert labels.names.tolist() == NAMES and not labels.complaints and not labels.tilted
    np.testing.assert_allclose(labels.boxes, BOXES, atol=1e-5)


def test_a_frame_that_a_csv_of_all_does_not_name_has_no_objects_and_changes_are_seen(folder):
    csv_of_all(folder.root)
    own = reader(folder, "csv")
    assert own.labels("c").boxes.shape == (0, 7)
    (folder.root / "labels.csv").write_text(CSV + csv_lines("c"))
    assert own.labels("c").boxes.shape == (2, 7) and own.labels("a").boxes.shape == (0, 7)


def test_names_are_mapped_and_conventions_converted_in_every_format(folder):
    """labelCloud's boxes with relative rotations, in radians, clockwise."""
    objects = [labelcloud_object("car", [1, 2, 3, 4, 2, 1, 0])]
    objects[0]["rotations"] = {"x": 0, "y": 0, "z": -0.5}
    (folder.root / "labels/a.json").write_text(json.dumps({"objects": objects}))
    own = reader(folder, "labelcloud", box_convention={"unit": "rad", "clockwise": True}, class_map={"car": "Vehicle"})
    labels = own.labels("a")
    assert labels.names.tolist() == ["Vehicle"]
    np.testing.assert_allclose(labels.boxes, [[1, 2, 3, 4, 2, 1, 0.5]])


def test_tilted_boxes_are_noticed(folder):
    (folder.root / "labels/a.json").write_text(json.dumps({"objects": [labelcloud_object("car", BOXES[0], 8.0)]}))
    labels = reader(folder, "labelcloud").labels("a")
    assert len(labels.boxes) == 1 and labels.tilted == [f"{folder.root}/labels/a.json, object 1"]


def test_every_broken_line_of_a_file_is_found(folder):
    (folder.root / "labels/a.txt").write_text("1 2 3\n1 2 0.8 4 2 1.6 0.5 Car\n1 2 0.8 4 two 1.6 0.5 Car\n")
    rows, faults = reader(folder, "openpcdet").parse_labels("a")
    assert [row.name for row in rows] == ["Car"]
    assert [fault.split(": ")[0].rpartition("/")[2] for fault in faults] == ["a.txt:1", "a.txt:3"]
    with pytest.raises(ValueError, match=r"a.txt:1: .*has 3 .1 more lines of this frame are malformed"):
        reader(folder, "openpcdet").labels("a")


@pytest.mark.parametrize(
    "kind, name, content, message",
    [
        ("kitti", "a.txt", "Car 1 2 3\n", "a.txt:1: a KITTI label has 15 fields"),
        ("kitti_lidar", "a.txt", "Car" + " x" * 14, "a.txt:1: could not convert"),
        ("labelcloud", "a.json", "{", "a.json:1 is not JSON"),
        ("labelcloud", "a.json", "[]", "a.json is not labelCloud's JSON"),
        ("labelcloud", "a.json", '{"objects": null}', "a.json is not labelCloud's JSON, which has a list 'objects'"),
        ("labelcloud", "a.json", '{"labels": []}', "a.json is not labelCloud's JSON, which has a list 'objects'"),
        ("labelcloud", "a.json", '{"objects": [{"name": "car"}]}', "a.json, object 1 lacks 'centroid'"),
        ("csv", "a.csv", "x,y,z\n1,2,3\n", "a.csv:1: no column is called dx or length, dy or width.*there are x, y, z"),
        ("csv", "a.csv", CSV + "0,Car,1,2,3,4,5\n", "a.csv:2: could not convert string to float: ''"),
        ("csv", "a.csv", CSV + "0,,1,2,3,4,5,6,7\n", "a.csv:2: the class is empty"),
        ("csv", "../labels.csv", CSV + ",Car,1,2,3,4,5,6,7\n", "labels.csv:2: the frame is empty"),
        ("openpcdet", "a.txt", b"\xff\xfe", "a.txt is not text"),
    ],
)
def test_malformed_labels_are_named(folder, kind, name, content, message):
    (folder.root / "labels" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        reader(folder, kind).labels("a")


def test_missing_files_and_unfitting_options_are_named(folder):
    for kind, name in (("openpcdet", "a.txt"), ("labelcloud", "a.json"), ("csv", "a.csv")):
        with pytest.raises(FileNotFoundError, match=f"{name} are missing"):
            reader(folder, kind).labels("a")
    folder.calib_path("a").unlink()
    with pytest.raises(FileNotFoundError, match="calib/a.txt is missing.*kitti_lidar"):
        reader(folder, "kitti").labels("a")
    with pytest.raises(ValueError, match="BOX_CONVENTION says nothing where LABEL_FORMAT is kitti"):
        reader(folder, "kitti", box_convention={"unit": "deg"})
    with pytest.raises(ValueError, match="LABEL_FORMAT 'labelCould' is not known. Did you mean 'labelcloud'"):
        reader(folder, "labelCould")
    with pytest.raises(ValueError, match="MAX_SWEEPS is 0"):
        reader(folder, "kitti", max_sweeps=0)


def sweeping(folder, features=("x", "y", "z", "intensity", "timestamp"), count=3):
    return CustomReader(folder, CloudLayout(features), max_sweeps=count)


def test_sweeps_are_moved_into_the_frame_and_aged(folder):
    """An earlier sweep was taken half a turn and 1 m away; a still older one does not fit into MAX_SWEEPS."""
    np.save(folder.root / "points/a.npy", np.array([[1.0, 2, 3, 0.5]]))
    np.save(folder.root / "sweeps/b.npy", np.array([[1.0, 2, 3, 0.25], [np.nan, 0, 0, 0]]))
    np.save(folder.root / "sweeps/c.npy", np.array([[9.0, 9, 9, 0.9]]))
    half_turn = "-1 0 0 1 0 -1 0 0 0 0 1 0"
    (folder.root / "sweeps/a.txt").write_text(f"sweeps/c.npy 0.2\nsweeps/b.npy 0.1 {half_turn}\n")
    points, dropped = sweeping(folder, count=2).points("a")
    np.testing.assert_allclose(points, [[1, 2, 3, 0.5, 0], [0, -2, 3, 0.25, 0.1]], atol=1e-6)
    assert dropped == 1 and points.dtype == np.float32
    without_time = sweeping(folder, ("x", "y", "z", "intensity")).points("a")[0]
    np.testing.assert_allclose(without_time, [[1, 2, 3, 0.5], [0, -2, 3, 0.25], [9, 9, 9, 0.9]], atol=1e-6)


def test_a_frame_without_a_list_has_no_earlier_sweeps_but_the_folder_must_be_there(folder):
    np.save(folder.root / "points/a.npy", np.array([[1.0, 2, 3, 0.5]]))
    assert sweeping(folder).points("a")[0].tolist() == [[1, 2, 3, 0.5, 0]]
    (folder.root / "sweeps").rmdir()
    with pytest.raises(FileNotFoundError, match="MAX_SWEEPS is 3, but .*sweeps is missing"):
        sweeping(folder).points("a")


@pytest.mark.parametrize(
    "line, message",
    [
        ("points/a.npy", "a.txt:2: a sweep is .* has 1 fields"),
        ("points/a.npy x", "a.txt:2: could not convert"),
        ("points/a.npy nan", "a.txt:2: a sweep is"),
        ("points/z.npy 0.1", "a.txt:2: there is no cloud"),
    ],
)
def test_malformed_lists_of_sweeps_are_named(folder, line, message):
    np.save(folder.root / "points/a.npy", np.zeros((1, 4)))
    (folder.root / "sweeps/a.txt").write_text(f"\n{line}\n")
    with pytest.raises(ValueError, match=message):
        read_sweeps(folder.sweeps_path("a"), folder.root)
