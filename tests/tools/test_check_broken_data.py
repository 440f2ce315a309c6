"""Simulated data broken on purpose, one way at a time: the check names each, and fails where training would."""

import shutil

import numpy as np
import pytest

from pcdet.datasets.synthetic import simulate_custom

OWN = ["--cfg_file", "cfgs/custom_models/second.yaml"]
VOXELS = "DATA_CONFIG.DATA_PROCESSOR.2."
ANCHORS = "MODEL.DENSE_HEAD.ANCHOR_GENERATOR_CONFIG.0."


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Two simulated frames, one to train on."""
    return simulate_custom(tmp_path_factory.mktemp("clean") / "data", 2, 0, 0.5)


def change_labels(root, change):
    """Rewrite every label: ``change`` maps the (M, 7) boxes and the names to others."""
    for path in sorted((root / "labels").iterdir()):
        rows = [line.split() for line in path.read_text().splitlines()]
        boxes, names = change(np.array([r[:7] for r in rows], dtype=float), [r[7] for r in rows])
        lines = [" ".join(f"{v:.4f}" for v in box) + f" {name}\n" for box, name in zip(boxes, names, strict=True)]
        path.write_text("".join(lines))


def change_clouds(root, change):
    """Rewrite every cloud: ``change`` maps its (N, 4) points to others."""
    for path in sorted((root / "points").iterdir()):
        np.save(path, change(np.load(path)).astype(np.float32))


def columns(array, **values):
    """A copy of boxes or points with other columns."""
    out = array.copy()
    for name, value in values.items():
        out[:, int(name[1:])] = value
    return out


LABELS = {
    "mirrored": (lambda b: columns(b, c6=-b[:, 6]), "BREAKS", "set BOX_CONVENTION {clockwise: True}"),
    "a quarter turn off": (
        lambda b: columns(b, c6=b[:, 6] + np.pi / 2),
        "BREAKS",
        "set BOX_CONVENTION {zero: y} (or zero: -y, if all face back)",
    ),
    "both": (lambda b: columns(b, c6=np.pi / 2 - b[:, 6]), "BREAKS", "{clockwise: True, zero: y}"),
    "bottoms": (lambda b: columns(b, c2=b[:, 2] - b[:, 5] / 2), "BREAKS", "set BOX_CONVENTION {origin: bottom}"),
    "degrees": (lambda b: columns(b, c6=np.rad2deg(b[:, 6])), "BREAKS", "set BOX_CONVENTION {unit: deg}"),
    "width first": (lambda b: b[:, [0, 1, 2, 4, 3, 5, 6]], "BREAKS", "set BOX_CONVENTION {order: wlh} (or zero: -x"),
    "centimetres": (lambda b: columns(b, c3=b[:, 3] * 100, c4=b[:, 4] * 100), "harms", "is the order right?"),
    "elsewhere": (lambda b: columns(b, c0=b[:, 0] + 200), "BREAKS", "100% of"),
    "other axes": (lambda b: columns(b, c0=b[:, 1], c1=-b[:, 0]), "BREAKS", "labels and clouds have different axes"),
    "floating": (lambda b: columns(b, c2=b[:, 2] + 1.5), "harms", "above the ground"),
}


@pytest.fixture
def check(clean, tools, tmp_path, capsys):
    """``check(change, *options)``: exit code and printed lines of a copy that ``change`` has broken."""

    def run(change=None, *options):
        root = shutil.copytree(clean, tmp_path / "data")
        if change is not None:
            change(root)
        given = ["--data_path", str(root), "--out", str(tmp_path / "report.html"), "--pictures", "0"]
        code = tools("check_data")([*OWN, *given, *options])
        return code, capsys.readouterr().out.splitlines()

    return run


def expect(code, lines, level, words):
    """A line of this level says so, and something that breaks training makes the exit code 1."""
    assert any(line.startswith(level) and words in line for line in lines), lines
    assert code == any(line.startswith("BREAKS") for line in lines)


def test_nothing_is_wrong_with_them_before(check):
    code, lines = check()
    assert code == 0 and not [line for line in lines if line.startswith(("BREAKS", "harms"))]


@pytest.mark.parametrize("name", LABELS)
def test_labels(name, check):
    change, level, words = LABELS[name]
    code, lines = check(lambda root: change_labels(root, lambda boxes, names: (change(boxes), names)))
    expect(code, lines, level, words)


def test_centres_read_as_bottoms(check):
    code, lines = check(None, "--set", "DATA_CONFIG.BOX_CONVENTION", "{origin: bottom}")
    expect(code, lines, "BREAKS", "half their height lower (origin: center)")


def test_names_of_classes(check):
    code, lines = check(lambda root: change_labels(root, lambda b, names: (b, [n.lower() for n in names])))
    expect(code, lines, "BREAKS", "0 usable objects: CLASS_NAMES is ['Vehicle', 'Pedestrian', 'Cyclist']")


CLOUDS = {
    "intensity to 255": (lambda p: columns(p, c3=p[:, 3] * 255), "harms", "set INTENSITY_SCALE 0.00392157"),
    "no intensity": (lambda p: columns(p, c3=0.0), "note", "was it not recorded?"),
    "not finite": (lambda p: columns(p, c0=np.where(p[:, 0] > 60, np.nan, p[:, 0])), "note", "are NaN or infinite"),
    "high above": (lambda p: columns(p, c2=p[:, 2] + 6), "BREAKS", "outside POINT_CLOUD_RANGE's -2 to 4"),
    "empty": (lambda p: p[:0], "BREAKS", "2 of 2 clouds hold no point"),
    "a map": (lambda p: columns(p, c0=p[:, 0] + 5e5), "harms", "of a map?"),
    "three columns": (lambda p: p[:, :3], "BREAKS", "expected (N, 4)"),
}


@pytest.mark.parametrize("name", CLOUDS)
def test_clouds(name, check):
    change, level, words = CLOUDS[name]
    expect(*check(lambda root: change_clouds(root, change)), level, words)


def test_one_cloud_of_another_scale(check):
    code, lines = check(lambda root: change_clouds_of_val(root, 255))
    expect(code, lines, "harms", "intensity has two scales")


def change_clouds_of_val(root, factor):
    (frame,) = (root / "ImageSets" / "val.txt").read_text().split()
    path = root / "points" / f"{frame}.npy"
    points = np.load(path)
    np.save(path, columns(points, c3=points[:, 3] * factor))


CONFIGURATIONS = {
    "a narrow range": (["DATA_CONFIG.POINT_CLOUD_RANGE", "[0,-11.2,-2,12.8,11.2,4]"], "harms", "lie outside POINT_"),
    "a range that strides do not divide": (
        ["DATA_CONFIG.POINT_CLOUD_RANGE", "[-75.2,-75.2,-2,75.0,75.2,4]"], "BREAKS", "it may end at 73.6 or 75.2",
    ),
    "a range that voxels do not divide": (
        ["DATA_CONFIG.POINT_CLOUD_RANGE", "[-75.2,-75.2,-2,75.17,75.2,4]"], "BREAKS", "75.2",
    ),
    "a height for another head": (
        ["DATA_CONFIG.POINT_CLOUD_RANGE", "[-75.2,-75.2,-2,75.2,75.2,7]"], "BREAKS", "so end the range at z = ",
    ),
    "anchors of a lorry": ([f"{ANCHORS}anchor_sizes", "[[12.0,2.5,3.5]]"], "harms", "overlap anchor_sizes"),
    "anchors under the ground": ([f"{ANCHORS}anchor_bottom_heights", "[-3.5]"], "harms", "m apart"),
    "a small cap of voxels": ([f"{VOXELS}MAX_NUMBER_OF_VOXELS.train", "5000"], "harms", "MAX_NUMBER_OF_VOXELS.train"),
    "one point a voxel": ([f"{VOXELS}MAX_POINTS_PER_VOXEL", "1"], "note", "MAX_POINTS_PER_VOXEL 1 drops"),
    "sampling of other classes": (
        ["DATA_CONFIG.DATA_AUGMENTOR.AUG_CONFIG_LIST.0.SAMPLE_GROUPS", "[Tram:3]"], "harms", "SAMPLE_GROUPS names Tram",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations(name, check):
    values, level, words = CONFIGURATIONS[name]
    expect(*check(None, "--set", *values), level, words)


def test_frames_in_both_splits_and_equal_clouds(check):
    def leak(root):
        shutil.copy(root / "points" / "000000.npy", root / "points" / "000001.npy")

    code, lines = check(leak)
    expect(code, lines, "harms", "clouds are in 'train' and in 'val' or 'test'")
    expect(code, lines, "note", "1 clouds repeat others: 000000 = 000001")
