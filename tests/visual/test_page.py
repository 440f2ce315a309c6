"""The page with the 3-D view: what it holds, and what a browser makes of it."""

import base64
import json
import re

import numpy as np
import pytest
import torch
from headless_browser import CHROMIUM, Browser

from pcdet.structures.detections import Detections
from pcdet.structures.outcomes import NEUTRAL, RIGHT, WRONG, Outcomes
from pcdet.visual import SCORES, JudgedScene, read_image, write_page
from pcdet.visual.canvas import FALSE_ALARM, HIT, MISS, class_color

BOX = [10.0, 0.0, -1.0, 4.0, 2.0, 1.5, 0.3]
NAMES = ["Car", "Pedestrian"]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)")


def boxes(count: int) -> np.ndarray:
    return np.array([[10.0 + 8 * i, *BOX[1:]] for i in range(count)]).reshape(-1, 7)


def detections(*rows: tuple[float, int]) -> Detections:
    places = torch.tensor(boxes(len(rows)), dtype=torch.float32)
    return Detections(places, torch.tensor([score for score, _ in rows]), torch.tensor([n for _, n in rows]).long())


def scene(name="000001", points=2000, **options) -> JudgedScene:
    cloud = np.random.default_rng(0).uniform([0, -20, -2, 0], [40, 20, 0, 1], (points, 4))
    return JudgedScene(name, cloud, detections((0.9, 1), (0.4, 2)), **options)


def judged(name="000001", points=2000) -> JudgedScene:
    """A car found at 0.9, a pedestrian wrongly at 0.4, a car missed and a van that nobody asks for."""
    outcomes = {}
    for score in SCORES:
        found = [RIGHT if score <= 0.9 else NEUTRAL, WRONG if score <= 0.4 else NEUTRAL]
        outcomes[score] = Outcomes(np.array(found), np.array([RIGHT if score <= 0.9 else WRONG, WRONG, NEUTRAL]))
    truth = np.concatenate([boxes(1), boxes(4)[2:]])
    return scene(name, points, gt_boxes=truth, gt_names=["Car", "Car", "Van"], outcomes=outcomes)


def content(path) -> dict:
    text = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(text)


def test_a_page_holds_points_and_boxes(tmp_path):
    path = write_page([judged()], tmp_path / "page.html", class_names=NAMES)
    page = content(path)
    assert [kind["name"] for kind in page["classes"]] == NAMES and page["scores"][page["score"]] == 0.3
    (only,) = page["scenes"]
    assert [(o["name"], o["label"], o["score"]) for o in only["found"]] == [("Car", 1, 0.9), ("Pedestrian", 2, 0.4)]
    assert [(o["name"], o["label"]) for o in only["truth"]] == [("Car", 1), ("Car", 1), ("Van", 0)]
    assert only["truth"][0]["box"] == BOX
    at = [page["scores"].index(score) for score in (0.4, 0.45, 0.95)]
    assert [[o["verdicts"][i] for i in at] for o in only["found"]] == [[1, 1, -1], [0, -1, -1]]
    assert [[o["verdicts"][i] for i in at] for o in only["truth"]] == [[1, 1, 0], [0, 0, 0], [-1, -1, -1]]


def test_points_come_back_to_the_centimetre(tmp_path):
    one = scene()
    (only,) = content(write_page([one], tmp_path / "page.html", class_names=NAMES))["scenes"]
    points = np.frombuffer(base64.b64decode(only["points"]), "<i2").reshape(-1, 3) / 100
    np.testing.assert_allclose(points, one.points[:, :3], atol=0.00501)
    shades = np.frombuffer(base64.b64decode(only["intensity"]), np.uint8) / 255
    full = np.quantile(one.points[:, 3], 0.99)
    np.testing.assert_allclose(shades, np.minimum(one.points[:, 3] / full, 1), atol=1 / 255)


def test_a_scene_of_the_most_points_stays_below_two_megabytes(tmp_path):
    cloud = np.random.default_rng(0).uniform([-80, -80, -3, 0], [80, 80, 3, 1], (200_000, 4))
    found = detections(*[(0.5, 1)] * 200)
    verdicts = {s: Outcomes(np.ones(200, dtype=int), np.ones(200, dtype=int)) for s in SCORES}
    full = JudgedScene("a", cloud, found, boxes(200), ["Car"] * 200, verdicts)
    assert 1.8e6 < write_page([full], tmp_path / "page.html", class_names=NAMES).stat().st_size < 2e6


def test_a_page_needs_no_network(tmp_path):
    text = write_page([scene()], tmp_path / "page.html", class_names=NAMES).read_text()
    assert not re.search(r"https?://|<link|src=|@import|fetch\(", text)


def test_stray_points_and_boxes_are_left_out(tmp_path):
    points = np.array([[1, 2, 3, 0.5], [np.nan, 0, 0, 0], [400, 0, 0, 1], [1, 2, np.inf, 0]])
    found = detections((0.9, 1), (0.8, 1))
    found.boxes[1, 3] = float("nan")
    page = content(write_page([JudgedScene("a", points, found)], tmp_path / "page.html", class_names=["Car"]))
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
        write_page([JudgedScene("a", np.zeros(3), detections())], tmp_path / "page.html", class_names=["Car"])
    with pytest.raises(ValueError, match="3 boxes have 1 names"):
        write_page([scene(gt_boxes=boxes(3), gt_names=["Car"])], tmp_path / "page.html", class_names=NAMES)
    with pytest.raises(ValueError, match=r"not at the score 0\.33"):
        write_page([judged()], tmp_path / "page.html", class_names=NAMES, score=0.33)
    few = Outcomes(np.ones(1, dtype=int), np.ones(0, dtype=int))
    with pytest.raises(ValueError, match="2 boxes have 1 verdicts"):
        write_page([scene(outcomes={0.3: few})], tmp_path / "page.html", class_names=NAMES)
    with pytest.raises(ValueError, match="different scores"):
        write_page([judged(), scene(outcomes={0.3: few})], tmp_path / "page.html", class_names=NAMES)


def test_empty_scene(tmp_path):
    empty = JudgedScene("a", np.zeros((0, 4)), Detections.empty(), np.zeros((0, 7)), [])
    page = content(write_page([empty], tmp_path / "page.html", class_names=["Car"]))
    assert page["scenes"][0]["points"] == "" and page["scenes"][0]["truth"] == []


@pytest.fixture(scope="module", params=["webgl", "plain canvas"])
def browser(request, tmp_path_factory):
    """A page's way to draw: WebGL, here emulated and therefore asked for, or else a plain canvas."""
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        found.fragment = "#webgl" if request.param == "webgl" else ""
        yield found


def open_page(browser: Browser, scenes: list[JudgedScene], path) -> None:
    browser.open(write_page(scenes, path / "page.html", class_names=NAMES), browser.fragment)


def counts(browser: Browser) -> list[str]:
    return [text for text in browser.run('byId("counts").innerText').split("\n") if text]


def set_score(browser: Browser, score: float) -> None:
    browser.run(f'byId("score").value = DATA.scores.indexOf({score}); byId("score").dispatchEvent(new Event("input"))')


def near(pixels: np.ndarray, color: str, reach: int = 60) -> int:
    """How many pixels have about this colour."""
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels.astype(int) - wanted).sum(axis=2) < reach).sum())


def seen(browser: Browser, path) -> np.ndarray:
    """What the page shows beside its panel, once it has drawn."""
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return read_image(browser.screenshot(path))[:, 290:]


@needs_browser
def test_a_browser_draws_points_and_verdicts(browser, tmp_path):
    open_page(browser, [judged()], tmp_path)
    assert counts(browser) == [
        "2000 points", "2 objects found", "3 labelled",
        "1 hits", "1 false alarms", "1 missed", "1 labelled and found", "1 not judged",
    ]  # fmt: skip
    picture = seen(browser, tmp_path / "a.png")
    bluish = (picture[..., 2] > 110) & (picture[..., 2].astype(int) >= picture[..., 0])
    assert bluish.sum() > 500
    assert all(near(picture, color) > 30 for color in (HIT, FALSE_ALARM, MISS))
    browser.run('byId("boxColor").value = "class"; byId("boxColor").onchange()')
    picture = seen(browser, tmp_path / "b.png")
    assert near(picture, class_color(1)) > 30 and near(picture, FALSE_ALARM) == 0
    assert browser.errors == []


@needs_browser
def test_filters_change_what_is_counted_and_drawn(browser, tmp_path):
    open_page(browser, [judged()], tmp_path)
    set_score(browser, 0.45)
    assert counts(browser)[1:6] == ["1 objects found", "3 labelled", "1 hits", "0 false alarms", "1 missed"]
    assert near(seen(browser, tmp_path / "a.png"), FALSE_ALARM) == 0
    set_score(browser, 0.95)
    assert counts(browser)[1:6] == ["0 objects found", "3 labelled", "0 hits", "0 false alarms", "2 missed"]
    set_score(browser, 0.0)
    browser.run("document.querySelector('[data-label=\"1\"]').click()")
    assert counts(browser)[1:4] == ["1 objects found", "0 labelled", "0 hits"]
    assert near(seen(browser, tmp_path / "b.png"), HIT) == 0
    assert browser.errors == []


@needs_browser
def test_scenes_are_chosen_and_points_coloured(browser, tmp_path):
    bare = JudgedScene("bare", np.zeros((0, 3)), Detections.empty())
    open_page(browser, [judged("a"), scene("b", 500), bare], tmp_path)
    assert browser.run('[...byId("scene").options].map((o) => o.text)') == ["a", "b", "bare"]
    first = seen(browser, tmp_path / "a.png")
    browser.run('byId("pointColor").value = "intensity"; byId("pointColor").onchange()')
    assert (seen(browser, tmp_path / "b.png") != first).any(axis=2).sum() > 500
    browser.run('byId("next").click()')
    assert counts(browser) == ["500 points", "2 objects found"] and browser.run('byId("boxColor").disabled')
    assert near(seen(browser, tmp_path / "c.png"), class_color(1)) > 30
    browser.run('byId("next").click()')
    assert counts(browser) == ["0 points", "0 objects found"]
    browser.run('byId("next").click()')
    assert browser.run('byId("scene").value') == "0" and counts(browser)[0] == "2000 points"
    assert browser.errors == []


@needs_browser
def test_the_mouse_turns_moves_and_zooms(browser, tmp_path):
    open_page(browser, [judged()], tmp_path)
    before = browser.run("camera")

    def drag(button, buttons):
        browser.mouse("mousePressed", 600, 300, button=button, buttons=buttons, clickCount=1)
        browser.mouse("mouseMoved", 660, 330, button=button, buttons=buttons)
        browser.mouse("mouseReleased", 660, 330, button=button)

    first = seen(browser, tmp_path / "a.png")
    drag("left", 1)
    turned = browser.run("camera")
    assert turned["azimuth"] == pytest.approx(before["azimuth"] - 0.36) and turned["target"] == before["target"]
    assert (seen(browser, tmp_path / "b.png") != first).any(axis=2).sum() > 500
    drag("right", 2)
    moved = browser.run("camera")
    assert moved["azimuth"] == turned["azimuth"] and moved["target"] != before["target"]
    browser.mouse("mouseWheel", 600, 300, deltaX=0, deltaY=-300)
    assert browser.run("camera.distance") == pytest.approx(moved["distance"] * np.exp(-0.3))
    assert browser.errors == []


@needs_browser
def test_a_page_says_where_there_is_no_webgl(browser, tmp_path):
    open_page(browser, [judged()], tmp_path)
    assert browser.run("Boolean(gl)") == (browser.fragment == "#webgl")
    assert ("plain canvas" in browser.run('byId("note").textContent')) == (browser.fragment == "")
