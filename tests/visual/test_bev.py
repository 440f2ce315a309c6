"""Pictures from above: places, colours, and input that is empty or broken."""

import numpy as np
import pytest
import torch

from pcdet.structures.detections import Detections
from pcdet.visual import draw_bev, read_image
from pcdet.visual.bev import BOTTOM, LEFT, MARGIN, TOP, View, choose_view
from pcdet.visual.canvas import class_color

NAMES = ("Car", "Pedestrian", "Cyclist")
RANGE = (0.0, -10.0, -3.0, 20.0, 10.0, 1.0)
NO_POINTS = np.zeros((0, 4), dtype=np.float32)


def found(*rows: tuple[float, ...], labels: tuple[int, ...] = (1,)) -> Detections:
    boxes = torch.tensor(rows, dtype=torch.float32)
    return Detections(boxes, torch.full((len(rows),), 0.5), torch.tensor(labels))


def rgb(text: str) -> np.ndarray:
    return np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)])


def is_near(picture: np.ndarray, place: tuple[int, int], color: str, reach: int = 2) -> bool:
    """Does a pixel within ``reach`` of a (row, column) have the colour, but for rounding?"""
    row, column = place
    patch = picture[row - reach : row + reach + 1, column - reach : column + reach + 1].astype(int)
    return bool((abs(patch - rgb(color)).max(axis=-1) < 12).any())


def places_of(picture: np.ndarray, color: str) -> np.ndarray:
    """(N, 2) rows and columns of pixels with the colour inside the scene (the legend has it too)."""
    scene = picture[TOP:-BOTTOM, LEFT:-MARGIN].astype(int)
    return np.argwhere(abs(scene - rgb(color)).max(axis=-1) < 12)


def test_a_view_has_x_up_and_y_to_the_left():
    view = View(0.0, -10.0, 20.0, 10.0, scale=10.0)
    assert (view.height, view.width) == (200, 200)
    assert view.pixel(20.0, 10.0) == (TOP, LEFT)
    assert view.pixel(0.0, -10.0) == (TOP + 200, LEFT + 200)
    assert view.pixel(15.0, 10.0) == (TOP + 50, LEFT)


def test_the_range_sets_the_size(tmp_path):
    path = draw_bev(NO_POINTS, tmp_path / "new" / "a.png", class_names=NAMES, point_cloud_range=RANGE)
    assert path == tmp_path / "new" / "a.png"
    # 20 m x 20 m at the largest scale, 40 pixels a metre
    assert read_image(path).shape == (TOP + 800 + BOTTOM, LEFT + 800 + MARGIN, 3)


def test_the_range_of_kitti_fits_the_larger_side():
    view = choose_view(np.zeros((0, 3)), np.zeros((0, 7)), (0, -39.68, -3, 69.12, 39.68, 1))
    assert view.scale == pytest.approx(1100 / 69.12)
    assert (view.x_min, view.x_max, view.y_min, view.y_max) == pytest.approx((0, 69.12, -39.68, 39.68))


def test_a_strip_is_widened_to_half_its_length():
    view = choose_view(np.zeros((0, 3)), np.zeros((0, 7)), (0, -1, -3, 40, 3, 1))
    assert (view.x_min, view.x_max, view.y_min, view.y_max) == pytest.approx((0, 40, -9, 11))


def test_a_box_has_its_colour_on_its_edges(tmp_path):
    # 4 m long, 2 m wide, turned by 90 degrees: it reaches 1 m along x and 2 m along y.
    detections = found((10, 3, 0, 4, 2, 1.5, np.pi / 2), (15, -5, 0, 2, 2, 2, 0), labels=(1, 3))
    path = draw_bev(NO_POINTS, tmp_path / "a.png", detections=detections, class_names=NAMES, point_cloud_range=RANGE)
    picture, view = read_image(path), choose_view(NO_POINTS, np.zeros((0, 7)), RANGE)
    for x, y in ((11, 4), (9, 4), (10, 5), (10, 1)):
        assert is_near(picture, view.pixel(x, y), class_color(1))
    assert is_near(picture, view.pixel(14, -5.5), class_color(3))
    assert not is_near(picture, view.pixel(12, 3), class_color(1))
    assert len(places_of(picture, class_color(2))) == 0


def test_the_heading_mark_leaves_the_front(tmp_path):
    detections = found((10, 0, 0, 4, 2, 1.5, np.pi / 2))
    path = draw_bev(NO_POINTS, tmp_path / "a.png", detections=detections, class_names=NAMES, point_cloud_range=RANGE)
    picture, view = read_image(path), choose_view(NO_POINTS, np.zeros((0, 7)), RANGE)
    assert is_near(picture, view.pixel(10, 2.4), class_color(1))  # beyond the front, which lies at y = 2
    assert is_near(picture, view.pixel(10, 1), class_color(1))
    assert not is_near(picture, view.pixel(10, -1), class_color(1))
    assert not is_near(picture, view.pixel(10, -2.4), class_color(1))


def test_ground_truth_is_dashed_white(tmp_path):
    truth = np.array([[10, 0, 0, 8, 4, 1.5, 0, 1]], dtype=np.float32)
    path = draw_bev(NO_POINTS, tmp_path / "a.png", gt_boxes=truth, class_names=NAMES, point_cloud_range=RANGE)
    picture, view = read_image(path), choose_view(NO_POINTS, np.zeros((0, 7)), RANGE)
    (top, column), (bottom, _) = view.pixel(13.5, 2), view.pixel(6.5, 2)
    left_edge = picture[top:bottom, column - 2 : column + 3].min(axis=-1).max(axis=-1)  # brightest of five columns
    assert 0.5 < (left_edge > 150).mean() < 0.8
    assert 0.15 < (left_edge < 80).mean()


def test_higher_points_are_brighter_and_lie_where_they_are(tmp_path):
    low = [[5 + i / 100, 5, -2, 0] for i in range(100)]
    high = [[15 + i / 100, -5, 1, 0] for i in range(100)]
    path = draw_bev(np.array(low + high), tmp_path / "a.png", class_names=NAMES, point_cloud_range=RANGE)
    picture, view = read_image(path).astype(int), choose_view(NO_POINTS, np.zeros((0, 7)), RANGE)
    below, above = picture[view.pixel(5.5, 5)], picture[view.pixel(15.5, -5)]
    assert above.sum() > below.sum() + 200 > picture[view.pixel(10.3, 0.4)].sum() + 200


def test_broken_points_and_boxes_are_left_out(tmp_path):
    bad = np.array([[np.nan, 0, 0, 0], [1, np.inf, 0, 0], [1, 1, -np.inf, 0], [3e38, -3e38, 0, 0]], dtype=np.float32)
    good = np.array([[5, 5, 0, 0], [6, 5, 0.5, np.nan]], dtype=np.float32)
    detections = found((np.nan, 0, 0, 4, 2, 1.5, 0), (10, 0, 0, 4, 2, 1.5, np.inf), labels=(1, 1))
    truth = np.full((1, 7), np.nan)
    arguments = {"class_names": NAMES, "point_cloud_range": RANGE}
    with np.errstate(all="raise"):
        one = draw_bev(
            np.concatenate([bad, good]), tmp_path / "a.png", detections=detections, gt_boxes=truth, **arguments
        )
        other = draw_bev(good, tmp_path / "b.png", detections=Detections.empty(), gt_boxes=truth[:0], **arguments)
    np.testing.assert_array_equal(read_image(one), read_image(other))


@pytest.mark.parametrize("points", [NO_POINTS, np.full((7, 3), np.nan), np.ones((1, 3)), np.full((2, 3), 3e38)])
def test_scenes_with_next_to_nothing_are_pictures(tmp_path, points):
    path = draw_bev(points, tmp_path / "a.png", class_names=NAMES, detections=Detections.empty())
    height, width, _ = read_image(path).shape
    assert 400 < height < 1300 and 400 < width < 1800


def test_boxes_without_points_are_in_view(tmp_path):
    far = np.array([[120.0, 60.0, 0, 4, 2, 1.5, 0.3]])
    view = choose_view(np.zeros((0, 3)), far)
    assert choose_view(np.full((9, 3), 1e30), np.concatenate([far, far * 1e9])) == view
    assert view.x_min < 117 and view.x_max > 123 and view.y_min < 58 and view.y_max > 62
    path = draw_bev(NO_POINTS, tmp_path / "a.png", detections=found(tuple(far[0])), class_names=NAMES)
    assert len(places_of(read_image(path), class_color(1))) > 100


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"points": np.zeros(4)}, r"points have shape \(4,\)"),
        ({"gt_boxes": np.zeros((2, 6))}, r"gt_boxes has shape \(2, 6\)"),
        ({"detections": found((0, 0, 0, 1, 1, 1, 0), labels=(4,))}, r"label 4 is none of 1\.\.3"),
        ({"detections": found((0, 0, 0, 1, 1, 1, 0), labels=(0,))}, r"label 0 is none of 1\.\.3"),
        ({"point_cloud_range": (0, 1, 2)}, "3 numbers"),
        ({"point_cloud_range": (5, -1, -1, 5, 1, 1)}, "is empty"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, changes, message):
    arguments = {"points": NO_POINTS, "class_names": NAMES, **changes}
    with pytest.raises(ValueError, match=message):
        draw_bev(arguments.pop("points"), tmp_path / "a.png", **arguments)
    assert not (tmp_path / "a.png").exists()
