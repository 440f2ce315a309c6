"""Boxes over camera images: projection, the cut before the camera, and reading."""

import numpy as np
import pytest
from skimage import io

from pcdet.structures.calibration import Calibration
from pcdet.visual import draw_image_boxes, read_image
from pcdet.visual.canvas import class_color
from pcdet.visual.image import clip_near, project_edges

NAMES = ("Car", "Pedestrian")
GREY = np.full((200, 400, 3), 40, dtype=np.uint8)
# A camera at the LiDAR's origin that looks along x: 100 pixels a unit of slope, centre (200, 100).
CAMERA = Calibration(
    P2=np.array([[100, 0, 200, 0], [0, 100, 100, 0], [0, 0, 1, 0]], dtype=np.float32),
    R0=np.eye(3, dtype=np.float32),
    V2C=np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]], dtype=np.float32),
)


def has_color(picture: np.ndarray, row: int, column: int, label: int) -> bool:
    color = [int(class_color(label)[i : i + 2], 16) for i in (1, 3, 5)]
    patch = picture[row - 2 : row + 3, column - 2 : column + 3].astype(int)
    return bool((abs(patch - color).max(axis=-1) < 60).any())  # thin lines are mixed with the ground


def test_edges_land_where_the_camera_sees_them():
    # Faces at x = 4 and x = 8, half sizes 2 and 1: slopes 0.5 and 0.25 before, 0.25 and 0.125 behind.
    lines = project_edges(np.array([6, 0, 0, 4, 4, 2, 0], dtype=np.float64), CAMERA)
    assert lines.shape == (14, 2, 2)
    assert lines[:12].reshape(-1, 2).min(axis=0) == pytest.approx([150, 75])
    assert lines[:12].reshape(-1, 2).max(axis=0) == pytest.approx([250, 125])
    front = lines[12:].reshape(-1, 2)  # the front (+x) is the far face: heading 0 looks away from the camera
    assert front.min(axis=0) == pytest.approx([175, 87.5])


def test_a_box_has_its_colour_in_the_image(tmp_path):
    boxes = np.array([[6, 0, 0, 4, 4, 2, 0], [6, 8, 0, 1, 1, 1, 0]])
    path = draw_image_boxes(
        GREY, boxes, CAMERA, tmp_path / "new" / "a.png", labels=[1, 2], scores=[0.9, 0.8], class_names=NAMES
    )
    picture = read_image(path)
    assert picture.shape == GREY.shape
    assert has_color(picture, 125, 200, 1) and has_color(picture, 110, 150, 1)
    assert has_color(picture, 100, 200, 1)  # the cross on the front
    assert has_color(picture, 109, 60, 2)
    assert not has_color(picture, 150, 200, 1)


@pytest.mark.parametrize("shape", [(29, 57), (375, 1242), (370, 1224)])
def test_without_boxes_the_image_is_unchanged(tmp_path, shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    path = draw_image_boxes(image, np.zeros((0, 7)), CAMERA, tmp_path / "a.png", labels=[], class_names=NAMES)
    np.testing.assert_array_equal(read_image(path), image)


def test_what_is_behind_the_camera_or_broken_is_left_out(tmp_path):
    boxes = np.array([[-6, 0, 0, 4, 4, 2, 0], [np.nan, 0, 0, 4, 4, 2, 0], [6, 0, 0, 4, 4, np.inf, 0]])
    path = draw_image_boxes(
        GREY, boxes, CAMERA, tmp_path / "a.png", labels=[1, 1, 2], class_names=NAMES, gt_boxes=boxes
    )
    np.testing.assert_array_equal(read_image(path), GREY)


def test_a_box_around_the_camera_is_cut_at_the_near_plane(tmp_path):
    box = np.array([[0.0, 0, 0, 8, 4, 2, 0]])
    lines = project_edges(box[0], CAMERA)
    assert len(lines) == 10  # four edges of the far face, four that are cut, the cross
    assert np.isfinite(lines).all()
    picture = read_image(draw_image_boxes(GREY, box, CAMERA, tmp_path / "a.png", labels=[1], class_names=NAMES))
    # The far face at x = 4 is seen; what passes the camera runs outwards, never mirrored through the centre.
    assert has_color(picture, 125, 180, 1) and has_color(picture, 140, 280, 1)


def test_lines_are_cut_by_arithmetic():
    lines = np.array([
        [[0, 0, -1], [2, 4, 1]],  # crosses: the plane z = 0.5 lies at three quarters
        [[2, 4, 1], [0, 0, -1]],
        [[0, 0, 1], [1, 1, 2]],  # before
        [[0, 0, -1], [1, 1, 0.5]],  # only touches
        [[0, 0, -2], [1, 1, -2]],  # behind
    ])  # fmt: skip
    expected = [[[1.5, 3, 0.5], [2, 4, 1]], [[2, 4, 1], [1.5, 3, 0.5]], [[0, 0, 1], [1, 1, 2]]]
    np.testing.assert_allclose(clip_near(lines, near=0.5), expected)


def test_ground_truth_is_white(tmp_path):
    truth = np.array([[6, 0, 0, 4, 4, 2, 0, 1.0]])
    path = draw_image_boxes(
        GREY, np.zeros((0, 7)), CAMERA, tmp_path / "a.png", labels=[], class_names=NAMES, gt_boxes=truth
    )
    bright = np.argwhere(read_image(path).min(axis=-1) > 230)
    assert len(bright) > 50
    assert bright.min(axis=0) == pytest.approx([75, 150], abs=2) and bright.max(axis=0) == pytest.approx(
        [125, 250], abs=2
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image": GREY[..., 0]}, r"\(200, 400\) uint8"),
        ({"image": GREY / 255}, "float64"),
        ({"labels": [1, 2]}, "1 boxes have 2 labels"),
        ({"labels": [3]}, r"label 3 is none of 1\.\.2"),
        ({"scores": []}, "1 boxes have 0 scores"),
        ({"boxes": np.zeros((1, 5))}, r"boxes has shape \(1, 5\)"),
    ],
)
def test_wrong_arguments_are_named_for_images(tmp_path, changes, message):
    arguments = {"image": GREY, "boxes": np.ones((1, 7)), "labels": [1], "class_names": NAMES, **changes}
    with pytest.raises(ValueError, match=message):
        draw_image_boxes(arguments.pop("image"), arguments.pop("boxes"), CAMERA, tmp_path / "a.png", **arguments)


@pytest.mark.parametrize(
    "stored",
    [
        GREY,
        GREY[..., 0],
        np.concatenate([GREY, GREY[..., :1]], axis=-1),
        np.full((200, 400), 40 * 257, dtype=np.uint16),
        np.stack([GREY[..., 0], np.full((200, 400), 255, np.uint8)], axis=-1),
    ],
    ids=["rgb", "grey", "rgba", "16 bit", "grey and alpha"],
)
def test_images_of_every_kind_are_read_as_rgb(tmp_path, stored):
    io.imsave(tmp_path / "a.png", stored, check_contrast=False)
    image = read_image(tmp_path / "a.png")
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, GREY)


def test_what_is_no_image_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.png"):
        read_image(tmp_path / "absent.png")
    io.imsave(tmp_path / "whole.png", GREY, check_contrast=False)
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:100])
    (tmp_path / "text.png").write_text("not an image")
    for name in ("cut.png", "text.png"):
        with pytest.raises(ValueError, match=f"{name} cannot be read as an image"):
            read_image(tmp_path / name)
