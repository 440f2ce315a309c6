import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from pcdet.structures.detections import Detections
from pcdet.visual import PageScene, write_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BOX = [10.0, 0.0, -1.0, 4.0, 2.0, 1.5, 0.3]


def detections(*rows: tuple[float, int]) -> Detections:
    boxes = torch.tensor([[10.0 + 8 * i, *BOX[1:]] for i in range(len(rows))]).reshape(-1, 7)
    scores = torch.tensor([score for score, _ in rows])
    return Detections(boxes, scores, torch.tensor([label for _, label in rows], dtype=torch.int64))


def scene(name="000001", **options) -> PageScene:
    points = np.random.default_rng(0).uniform([0, -20, -2, 0], [40, 20, 0, 1], (2000, 4))
    return PageScene(name, points, detections((0.9, 1), (0.4, 2)), **options)


def content(path) -> dict:
    text = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(text)


def test_a_page_holds_points_and_boxes(tmp_path):
    truth = {"gt_boxes": np.array([BOX]), "gt_labels": np.array([1])}
    judged = {"hits": np.array([True, False]), "found": np.array([True])}
    path = write_page([scene(**truth, **judged)], tmp_path / "page.html", class_names=["Car", "Pedestrian"])
    page = content(path)
    assert [kind["name"] for kind in page["classes"]] == ["Car", "Pedestrian"]
    (only,) = page["scenes"]
    assert [(o["label"], o["score"], o["hit"]) for o in only["found"]] == [(1, 0.9, True), (2, 0.4, False)]
    assert only["truth"] == [{"box": BOX, "label": 1, "hit": True}]
    assert len(only["points"]) == 4 * 2000 * 3 * 2 // 3  # base64 of three 16-bit numbers a point


def test_a_page_needs_no_network(tmp_path):
    text = write_page([scene()], tmp_path / "page.html", class_names=["Car", "Pedestrian"]).read_text()
    assert not re.search(r"https?://|<link|src=|@import|fetch\(", text)


def test_stray_points_and_boxes_are_left_out(tmp_path):
    points = np.array([[1, 2, 3, 0.5], [np.nan, 0, 0, 0], [400, 0, 0, 1], [1, 2, np.inf, 0]])
    found = detections((0.9, 1), (0.8, 1))
    found.boxes[1, 3] = float("nan")
    page = content(write_page([PageScene("a", points, found)], tmp_path / "page.html", class_names=["Car"]))
    assert len(page["scenes"][0]["points"]) == 8
    assert len(page["scenes"][0]["found"]) == 1
    assert "truth" not in page["scenes"][0]


def test_many_points_are_thinned(tmp_path):
    page = content(write_page([scene()], tmp_path / "page.html", class_names=["a", "b"], max_points=600))
    assert len(page["scenes"][0]["points"]) == 4 * 500 * 3 * 2 // 3


def test_a_name_cannot_end_the_data(tmp_path):
    path = write_page([scene("</script><b>")], tmp_path / "page.html", class_names=["a", "b"])
    assert content(path)["scenes"][0]["name"] == "</script><b>"


def test_no_scene_and_odd_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one scene"):
        write_page([], tmp_path / "page.html", class_names=["Car"])
    with pytest.raises(ValueError, match="label 2 is none of 1..1"):
        write_page([scene()], tmp_path / "page.html", class_names=["Car"])
    with pytest.raises(ValueError, match="points of a have shape"):
        write_page([PageScene("a", np.zeros(3), detections())], tmp_path / "page.html", class_names=["Car"])


def test_empty_scene(tmp_path):
    empty = PageScene("a", np.zeros((0, 4)), Detections.empty(), np.zeros((0, 7)), np.zeros(0, int))
    page = content(write_page([empty], tmp_path / "page.html", class_names=["Car"]))
    assert page["scenes"][0]["points"] == "" and page["scenes"][0]["truth"] == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_draws_points_and_boxes(tmp_path):
    from PIL import Image

    path = write_page([scene()], tmp_path / "page.html", class_names=["Car", "Pedestrian"])
    options = ["--headless", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    options += ["--window-size=900,600", f"--screenshot={tmp_path / 'page.png'}", "--virtual-time-budget=2000"]
    # Its profile goes below the test's folder.
    options += [f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    subprocess.run([BROWSER, *options], capture_output=True, timeout=120, check=True)
    pixels = np.asarray(Image.open(tmp_path / "page.png").convert("RGB")).astype(int)[:, 280:]  # beside the panel
    orange = (np.abs(pixels - [255, 159, 28]).sum(axis=2) < 60).sum()
    bluish = ((pixels[..., 2] > 110) & (pixels[..., 2] >= pixels[..., 0])).sum()
    assert orange > 30 and bluish > 500
