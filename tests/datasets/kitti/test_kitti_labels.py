"""Label files."""

import numpy as np
import pytest

from pcdet.datasets.kitti.labels import parse_line, read_labels, to_annos, without_dont_care

CAR = "Car 0.00 0 1.85 387.63 181.54 423.81 203.12 1.67 1.87 3.69 -16.53 2.39 58.49 1.57"
WALKER = "Pedestrian 0.00 0 -0.20 712.40 143.00 810.73 307.92 1.89 0.48 1.20 1.84 1.47 8.41 0.01"
DONT_CARE = "DontCare -1 -1 -10 503.89 169.71 590.61 290.13 -1 -1 -1 -1000 -1000 -1000 -10"


def write(tmp_path, *lines):
    path = tmp_path / "000001.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_line_by_hand():
    item = parse_line(CAR, "x:1")
    assert (item.name, item.height, item.width, item.length) == ("Car", 1.67, 1.87, 3.69)
    assert item.location == (-16.53, 2.39, 58.49) and item.rotation_y == 1.57 and item.score == -1
    assert parse_line(f"{CAR} 0.75", "x:1").score == 0.75


@pytest.mark.parametrize(
    "height, truncated, occluded, level",
    [
        (39, 0.15, 0, 0),  # 39 + 1 = 40 pixels
        (38.9, 0.15, 0, 1),
        (100, 0.16, 0, 1),
        (100, 0.0, 1, 1),
        (100, 0.31, 0, 2),
        (24, 0.5, 2, 2),
        (23.9, 0.0, 0, -1),
        (100, 0.51, 0, -1),
        (100, 0.0, 3, -1),
    ],
)
def test_difficulty(height, truncated, occluded, level):
    line = f"Car {truncated} {occluded} 0 100 100 200 {100 + height} 1.5 1.6 3.9 0 1.7 20 0"
    assert parse_line(line, "x:1").difficulty == level


def test_c1_dont_care_may_stand_anywhere(tmp_path):
    mixed, _ = read_labels(write(tmp_path, DONT_CARE, CAR, DONT_CARE, WALKER))
    last, _ = read_labels(write(tmp_path, CAR, WALKER, DONT_CARE, DONT_CARE))
    mixed, last = to_annos(mixed), to_annos(last)
    for key in last:
        np.testing.assert_array_equal(mixed[key], last[key])
    assert mixed["name"].tolist() == ["Car", "Pedestrian", "DontCare", "DontCare"]
    assert mixed["index"].tolist() == [0, 1, -1, -1]
    assert mixed["difficulty"].tolist() == [-1, 0, -1, -1]
    np.testing.assert_allclose(mixed["dimensions"][1], [1.2, 1.89, 0.48])  # l h w
    assert without_dont_care(mixed)["bbox"].shape == (2, 4)


def test_c2_an_empty_file_gives_no_rows(tmp_path):
    annos = to_annos(read_labels(write(tmp_path))[0])
    assert annos["name"].shape == (0,) and annos["bbox"].shape == (0, 4) and annos["dimensions"].shape == (0, 3)


@pytest.mark.parametrize(
    "line, message",
    [
        ("Car 0.00 0", r"000001.txt:2: .*15 fields .* this line has 3"),
        (CAR.replace("1.85", "a"), r"000001.txt:2: could not convert.*'a'"),
        (CAR.replace("Car", "../Car"), r"000001.txt:2: '../Car' cannot be a class name"),
    ],
)
def test_a_malformed_line_is_an_error_with_file_and_line(tmp_path, line, message):
    with pytest.raises(ValueError, match=message):
        read_labels(write(tmp_path, WALKER, line))


@pytest.mark.parametrize("value, reason", [("0", "size"), ("-1.2", "size"), ("nan", "finite"), ("inf", "finite")])
def test_a6_a_box_without_extent_is_left_out_with_file_and_line(tmp_path, value, reason):
    objects, complaints = read_labels(write(tmp_path, WALKER, CAR.replace("3.69", value)))
    assert [o.name for o in objects] == ["Pedestrian"]
    assert len(complaints) == 1 and "000001.txt:2: Car left out" in complaints[0] and reason in complaints[0]
