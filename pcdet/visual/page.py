"""Scenes with their boxes as one web page with a 3-D view: a single file that needs no network."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.structures.detections import Detections
from pcdet.utils.files import write_text
from pcdet.visual.canvas import as_boxes, as_labels, class_color

TEMPLATE = Path(__file__).with_name("page_template.html")
# Points are kept in whole centimetres of 16 bits.
CENTIMETRES, FARTHEST = 100.0, 327.0


@dataclass(frozen=True)
class PageScene:
    """One scene of a page.

    ``hits`` says of each detection whether it is right, ``found`` of each labelled box whether it was found; both are
    ``None`` where nobody judged.
    """

    name: str
    points: np.ndarray  # (N, 3 or more) x y z and perhaps intensity
    detections: Detections
    gt_boxes: np.ndarray | None = None  # (G, 7+)
    gt_labels: np.ndarray | None = None  # (G,) 1-based
    hits: np.ndarray | None = None  # (M,) bool
    found: np.ndarray | None = None  # (G,) bool


def write_page(
    scenes: Sequence[PageScene],
    path: str | Path,
    *,
    class_names: Sequence[str],
    score: float = 0.3,
    max_points: int = 200_000,
) -> Path:
    """Write ``scenes`` into one HTML file and return its path.

    The page turns and zooms by mouse or finger, filters by class and by score (``score`` is where it begins), and
    colours boxes by class or by outcome. Points that are not finite or lie beyond 327 m are left out; of more than
    ``max_points`` every n-th is kept. Intensity is scaled by the scene's largest.

    Raises:
        ValueError: There is no scene, an array has another shape, or a label is not one of ``class_names``.
    """
    if not scenes:
        raise ValueError("a page needs at least one scene")
    content = {
        "classes": [{"name": name, "color": class_color(i + 1)} for i, name in enumerate(class_names)],
        "score": score,
        "scenes": [_scene(scene, class_names, max_points) for scene in scenes],
    }
    # A name could hold "</script>"; < is the same to a JSON parser when it is written as an escape.
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    write_text(path, TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", text))
    return Path(path)


def _scene(scene: PageScene, class_names: Sequence[str], max_points: int) -> dict[str, Any]:
    points = np.asarray(scene.points, dtype=np.float32)
    if points.ndim != 2 or points.shape[1] < 3:
        raise ValueError(f"points of {scene.name} have shape {points.shape}, expected (N, 3 or more): x y z ...")
    points = points[np.isfinite(points).all(axis=1) & (np.abs(points[:, :3]) < FARTHEST).all(axis=1)]
    points = points[:: max(-(-len(points) // max_points), 1)]
    found = scene.detections.to("cpu")
    boxes = as_boxes(found.boxes.numpy(), f"detections of {scene.name}")
    labels = as_labels(found.labels.numpy(), len(boxes), class_names)
    low, high = _extent(points, boxes)
    out: dict[str, Any] = {
        "name": scene.name,
        "points": _base64(np.round(points[:, :3] * CENTIMETRES).astype("<i2")),
        "low": low,
        "high": high,
        "found": _items(boxes, labels, scene.hits, found.scores.tolist()),
    }
    if points.shape[1] > 3:
        largest = max(float(points[:, 3].max(initial=0)), 1e-9)
        out["intensity"] = _base64(np.clip(255 * points[:, 3] / largest, 0, 255).astype(np.uint8))
    if scene.gt_boxes is not None:
        truth = as_boxes(scene.gt_boxes, f"labelled boxes of {scene.name}")
        out["truth"] = _items(truth, as_labels(scene.gt_labels, len(truth), class_names), scene.found)
    return out


def _items(
    boxes: np.ndarray, labels: np.ndarray, right: np.ndarray | None, scores: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """Finite boxes (M, 7) with their labels, whether they are right, and perhaps scores."""
    rows = []
    for i in np.flatnonzero(np.isfinite(boxes).all(axis=1)):
        row = {"box": [round(float(v), 4) for v in boxes[i]], "label": int(labels[i])}
        row["hit"] = None if right is None else bool(right[i])
        rows.append(row if scores is None else {**row, "score": round(float(scores[i]), 4)})
    return rows


def _extent(points: np.ndarray, boxes: np.ndarray) -> tuple[list[float], list[float]]:
    """Corners around nearly all points, or around the boxes where there are no points."""
    places = points[:, :3] if len(points) else boxes[np.isfinite(boxes).all(axis=1), :3]
    if len(places) == 0:
        return [0.0, 0.0, 0.0], [10.0, 10.0, 1.0]
    low, high = np.quantile(places, (0.01, 0.99), axis=0)  # (3,) each
    return low.round(2).tolist(), high.round(2).tolist()


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
