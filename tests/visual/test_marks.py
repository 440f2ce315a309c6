"""Verdicts in pictures: a colour and a text for every box, and a legend that counts them."""

import numpy as np
import pytest
import torch

from pcdet.structures.calibration import Calibration
from pcdet.structures.detections import Detections
from pcdet.structures.outcomes import NEUTRAL, RIGHT, WRONG, Outcomes
from pcdet.visual import JudgedScene, draw_bev, draw_image_boxes, read_image
from pcdet.visual.canvas import FALSE_ALARM, GROUND_TRUTH, HIT, MISS, NOT_JUDGED, class_color
from pcdet.visual.image import LEGEND_LINE
from pcdet.visual.marks import class_legend, found_marks, truth_marks, verdict_legend

NAMES = ["Car", "Cyclist"]
BOXES = np.array([[8.0 + 6 * i, 3.0 - 2 * i, -0.8, 4, 1.8, 1.6, 0.2] for i in range(3)])
JUDGED = Outcomes(np.array([RIGHT, WRONG, NEUTRAL]), np.array([RIGHT, WRONG, NEUTRAL]))
POINTS = np.random.default_rng(0).uniform([0, -10, -2], [30, 10, 0], (500, 3))


def test_colours_and_texts_of_verdicts():
    found = found_marks(BOXES, [1, 2, 1], [0.9, 0.55, 0.2], JUDGED, NAMES)
    assert found.colors == (HIT, FALSE_ALARM, NOT_JUDGED)
    assert found.texts == ("Car 0.90", "Cyclist 0.55", "Car 0.20")
    truth = truth_marks(BOXES, ["Car", "Car", "Van"], JUDGED)
    assert truth.colors == (GROUND_TRUTH, MISS, NOT_JUDGED)
    assert truth.texts == ("", "Car", "Van")  # beside a found one stands the detection's text


def test_without_verdicts_colours_are_those_of_classes():
    found = found_marks(BOXES, [1, 2, 1], [0.9, 0.55, 0.2], None, NAMES)
    assert found.colors == (class_color(1), class_color(2), class_color(1)) and found.texts == ("0.90", "0.55", "0.20")
    assert found_marks(BOXES, [1, 2, 1], None, None, NAMES, named=True).texts == ("Car", "Cyclist", "Car")
    assert truth_marks(BOXES, ["Car"] * 3, None).colors == (GROUND_TRUTH,) * 3
    assert [row.text for row in class_legend(found.labels, NAMES, 3)] == ["Car (2)", "Cyclist (1)", "labelled (3)"]


def test_the_legend_counts():
    rows = verdict_legend(JUDGED)
    assert [(row.text, row.color) for row in rows] == [
        ("hit (1)", HIT),
        ("false alarm (1)", FALSE_ALARM),
        ("missed (1)", MISS),
        ("labelled, found (1)", GROUND_TRUTH),
        ("found, not judged (1)", NOT_JUDGED),
        ("labelled, not judged (1)", NOT_JUDGED),
    ]
    none = Outcomes(np.zeros(0, int), np.zeros(0, int))
    assert [row.text for row in verdict_legend(none)][:2] == ["hit (0)", "false alarm (0)"]


def test_a_scene_above_a_score_keeps_boxes_and_verdicts_together():
    found = Detections(torch.tensor(BOXES), torch.tensor([0.9, 0.2, 0.5]), torch.tensor([1, 1, 2]))
    scene = JudgedScene("a", POINTS, found, BOXES, ["Car"] * 3, {0.3: JUDGED})
    kept, outcomes = scene.above(0.3)
    assert kept.labels.tolist() == [1, 2]
    assert outcomes.found.tolist() == [RIGHT, NEUTRAL] and outcomes.truth.tolist() == JUDGED.truth.tolist()
    with pytest.raises(KeyError):
        scene.above(0.4)
    assert JudgedScene("a", POINTS, found).above(0.4)[1] is None


def near(pixels: np.ndarray, color: str) -> int:
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels.astype(int) - wanted).sum(axis=2) < 60).sum())


def test_verdicts_are_seen_from_above(tmp_path):
    found = Detections(torch.tensor(BOXES), torch.tensor([0.9, 0.55, 0.2]), torch.tensor([1, 2, 1]))
    options = {"detections": found, "gt_boxes": BOXES + [0, 5, 0, 0, 0, 0, 0], "gt_names": ["Car", "Car", "Van"]}
    path = draw_bev(POINTS, tmp_path / "a.png", outcomes=JUDGED, class_names=NAMES, **options)
    picture = read_image(path)
    assert all(near(picture, color) > 50 for color in (HIT, FALSE_ALARM, MISS, NOT_JUDGED))
    assert near(picture, class_color(1)) == 0
    plain = read_image(draw_bev(POINTS, tmp_path / "b.png", class_names=NAMES, **options))
    assert near(plain, class_color(1)) > 50 and near(plain, FALSE_ALARM) == 0


@pytest.mark.parametrize("width, lines", [(600, 2), (1242, 1), (200, 6)])
def test_verdicts_are_seen_in_the_image_over_a_legend(tmp_path, width, lines):
    v2c = np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]], dtype=np.float32)
    p2 = np.array([[width / 2, 0, width / 2, 0], [0, 300, 100, 0], [0, 0, 1, 0]], dtype=np.float32)
    calib = Calibration(p2, np.eye(3, dtype=np.float32), v2c)
    image = np.full((200, width, 3), 40, dtype=np.uint8)
    options = {"labels": [1, 2, 1], "scores": [0.9, 0.55, 0.2], "class_names": NAMES, "outcomes": JUDGED}
    truth = {"gt_boxes": BOXES + [0, -4, 0, 0, 0, 0, 0], "gt_names": ["Car", "Car", "Van"]}
    picture = read_image(draw_image_boxes(image, BOXES, calib, tmp_path / "a.png", **options, **truth))
    assert picture.shape == (200 + lines * LEGEND_LINE, width, 3)
    for color in (HIT, FALSE_ALARM, MISS, NOT_JUDGED):
        assert near(picture[:200], color) > 30 and near(picture[200:], color) > 3


@pytest.mark.parametrize(
    "outcomes, names, message",
    [
        (Outcomes(JUDGED.found[:2], JUDGED.truth), None, "3 detections have 2 verdicts"),
        (Outcomes(JUDGED.found, JUDGED.truth[:1]), None, "3 labelled boxes have 1 verdicts"),
        (JUDGED, ["Car"], "3 labelled boxes have 1 names"),
    ],
)
def test_missing_verdicts_and_names_are_told(tmp_path, outcomes, names, message):
    found = Detections(torch.tensor(BOXES), torch.tensor([0.9, 0.55, 0.2]), torch.tensor([1, 2, 1]))
    options = {"detections": found, "gt_boxes": BOXES, "gt_names": names, "class_names": NAMES}
    with pytest.raises(ValueError, match=message):
        draw_bev(POINTS, tmp_path / "a.png", outcomes=outcomes, **options)
    assert not (tmp_path / "a.png").exists()
