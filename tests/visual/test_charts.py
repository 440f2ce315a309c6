"""Curves, confusion matrices, and that no picture needs a display."""

import os
import subprocess
import sys

import numpy as np
import pytest

from pcdet.visual import draw_analysis, draw_confusion, draw_curves, read_image
from pcdet.visual.curves import COLORS, MAX_CURVES, split_panels

STEPS = [10, 20, 30]


def history(**more: list[float]) -> dict[str, tuple[list[int], list[float]]]:
    curves = {
        "train/loss": [3.0, 2.0, 1.0],
        "meta_data/learning_rate": [1e-4, 3e-3, 1e-5],
        "train/grad_norm": [30.0, 10.0, 5.0],
        "train/accuracy": [0.2, 0.5, 0.9],
        "Car_3d/moderate_R40": [0.0, 40.0, 71.5],
    }
    return {tag: (STEPS, values) for tag, values in {**curves, **more}.items()}


def test_every_kind_of_curve_has_its_panel():
    panels = split_panels(history())
    assert list(panels) == ["Losses", "Learning rate", "Gradient norm", "Metrics, 0 to 1", "Metrics"]
    assert list(panels["Metrics"]) == ["Car_3d/moderate_R40"]


def test_equal_curves_share_a_line():
    losses = split_panels(history(**{"train/rpn_loss": [3.0, 2.0, 1.0], "aux/loss": [3.0, 2.0, 1.0]}))["Losses"]
    assert list(losses) == ["train/loss = rpn_loss = aux/loss"]


def test_crowded_panels_are_divided():
    many = {f"Car_{i}/R40": [0.0, 1.0, 50.0 + i] for i in range(MAX_CURVES + 2)}
    panels = split_panels(history(**many))
    assert [len(panels[f"Metrics ({part} of 2)"]) for part in (1, 2)] == [MAX_CURVES, 3]


def test_curves_are_drawn(tmp_path):
    path = draw_curves(history(), tmp_path / "new" / "curves.png", title="a run")
    picture = read_image(path)
    assert picture.shape == (2 * 400 + 30, 3 * 600, 3)
    color = [int(COLORS[0][i : i + 2], 16) for i in (1, 3, 5)]
    painted = abs(picture.astype(int) - color).max(axis=-1) < 12
    assert all(painted[30:430, 600 * i : 600 * (i + 1)].sum() > 200 for i in range(3))


@pytest.mark.parametrize(
    "curves",
    [
        {},
        {"train/loss": ([], [])},
        {"train/loss": ([1], [2.0])},
        {"train/loss": (STEPS, [float("nan"), float("inf"), 1.0]), "train/loss_b": (STEPS, [-1.0, 0.0, 1.0])},
        {"train/loss": (STEPS, [float("nan")] * 3)},
        {"train/loss": (STEPS, [0.7, 0.7, 0.7])},
        {"train/loss": (STEPS, [1e-8, 1.0, 1e8])},
    ],
)
def test_curves_of_odd_runs_are_drawn(tmp_path, curves):
    draw_curves(curves, tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").shape == (400, 600, 3)


def test_a_curve_with_too_few_values_is_named(tmp_path):
    with pytest.raises(ValueError, match="train/loss has 3 steps and 1 values"):
        draw_curves({"train/loss": (STEPS, [1.0])}, tmp_path / "a.png")


def test_a_confusion_matrix_is_dark_where_classes_are_recognised(tmp_path):
    picture = read_image(draw_confusion(np.array([[30, 0], [15, 15]]), ["chair", "table"], tmp_path / "a.png"))
    axes = picture[50:290, 190:430].astype(int)  # 240 pixels for two cells
    cells = [axes[20:30, 20:30], axes[20:30, 140:150], axes[140:150, 20:30]]
    full, none, half = (cell.mean() for cell in cells)
    assert full < half - 30 < none - 60


@pytest.mark.parametrize("count", [1, 40])
def test_confusion_matrices_of_all_sizes(tmp_path, count):
    draw_confusion(np.zeros((count, count), dtype=int), [f"class {i}" for i in range(count)], tmp_path / "a.png")
    height, width, _ = read_image(tmp_path / "a.png").shape
    assert height >= 400 and width >= 400


@pytest.mark.parametrize("shape, names", [((2, 3), ["a", "b"]), ((0, 0), [])])
def test_a_matrix_of_another_size_is_refused(tmp_path, shape, names):
    with pytest.raises(ValueError, match=rf"\({shape[0]}, {shape[1]}\), but {len(names)} class names"):
        draw_confusion(np.zeros(shape), names, tmp_path / "a.png")


def test_no_display_and_no_pyplot(tmp_path, root):
    code = (
        "import sys, numpy as np; from pcdet.visual import draw_bev, draw_curves\n"
        "draw_bev(np.zeros((0, 3)), sys.argv[1] + '/a.png', class_names=['Car'])\n"
        "draw_curves({'loss': ([1, 2], [1.0, 0.5])}, sys.argv[1] + '/b.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'tkinter' not in sys.modules\n"
    )
    hidden = ("DISPLAY", "WAYLAND_DISPLAY")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {"MPLBACKEND": "TkAgg"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, env=environment, check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.png"]  # and nothing temporary


def test_many_equal_curves_have_a_short_label():
    """Forty classes of accuracy 0 would be one label wider than the picture."""
    panels = split_panels({f"eval/accuracy_of/{n}": ([1, 2], [0.0, 0.0]) for n in range(40)})
    assert list(panels["Metrics, 0 to 1"]) == ["eval/accuracy_of/0 = 1 = 2 = 3 = 36 more"]


def test_times_and_speeds_have_panels_of_their_own():
    curve = ([1, 2], [0.1, 0.2])
    panels = split_panels({"time/data": curve, "speed/samples_per_second": ([1, 2], [3.0, 4.0]), "eval/a": curve})
    assert list(panels) == ["Seconds a step", "Speed and device", "Metrics, 0 to 1"]


def test_charts_of_an_analysis(tmp_path):
    """Four pictures, also of a class without objects, detections or calibrated scores."""
    band = {"band": "all", "ground_truths": 3, "detections": 2, "ap": 50.0, "exact": 66.0, "found": 2}
    bins = [{"low": 0.9, "high": 1.0, "detections": 2, "right": 1, "mean_score": 0.95}]
    car = {
        "min_overlap": 0.7,
        "bands": [band],
        "precision_recall": {"score": [0.9, 0.5], "recall": [0.3, 0.6], "precision": [1.0, 0.5]},
        "calibration": {"error": 0.45, "bins": bins},
    }
    bare = {
        "min_overlap": 0.5,
        "bands": [band | {"ap": None, "exact": None, "ground_truths": 0}],
        "precision_recall": {"score": [], "recall": [], "precision": []},
        "calibration": {"error": None, "bins": []},
    }
    matrix = {"names": ["Car", "Bike", "nothing"], "counts": [[1, 0, 2], [0, 0, 0], [1, 0, 0]]}
    found = draw_analysis({"classes": {"Car": car, "Bike": bare}, "confusion": matrix}, tmp_path)
    assert [path.name for path in found] == ["precision_recall.png", "bands.png", "calibration.png", "confusion.png"]
    assert all(read_image(path).std() > 5 for path in found)
