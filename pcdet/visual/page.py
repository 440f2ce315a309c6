"""Scenes with their boxes as one web page with a 3-D view: a single file that needs no network."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.structures.outcomes import Outcomes
from pcdet.utils.files import write_text
from pcdet.visual.canvas import FALSE_ALARM, GROUND_TRUTH, HIT, MISS, NOT_JUDGED, as_boxes, as_labels, class_color
from pcdet.visual.judged import SCORES, JudgedScene

TEMPLATE = Path(__file__).with_name("page_template.html")
# Points are kept in whole centimetres of 16 bits.
CENTIMETRES, FARTHEST = 100.0, 327.0
BRIGHT = 0.99  # the part of the points that are not brighter than full intensity: reflectors outshine all else


def write_page(
    scenes: Sequence[JudgedScene],
    path: str | Path,
    *,
    class_names: Sequence[str],
    score: float = 0.3,
    max_points: int = 200_000,
) -> Path:
    """Write ``scenes`` into one HTML file and return its path.

    The page turns, moves and zooms by mouse or finger, filters by class and by score (``score`` is where it begins),
    and colours boxes by verdict or by class. It draws by WebGL, or on a plain canvas where there is none. The scores
    that it offers are those at which the scenes were judged, else steps of 0.05. Points that are not finite or lie
    beyond 327 m are left out; of more than ``max_points`` every n-th is kept, so that a scene stays below 2 MB.

    Raises:
        ValueError: There is no scene, an array has another shape, a label is not one of ``class_names``, or the scenes
            were judged at different scores.
    """
    if not scenes:
        raise ValueError("a page needs at least one scene")
    scores = _scores(scenes, score)
    content = {
        "classes": [{"name": name, "color": class_color(i + 1)} for i, name in enumerate(class_names)],
        "colors": {
            "hit": HIT, "falseAlarm": FALSE_ALARM, "miss": MISS, "labelled": GROUND_TRUTH, "notJudged": NOT_JUDGED
        },
        "scores": scores,
        "score": scores.index(score),
        "scenes": [_scene(scene, class_names, max_points) for scene in scenes],
    }  # fmt: skip
    # A name could hold "</script>"; < is the same to a JSON parser when it is written as an escape.
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    write_text(path, TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", text))
    return Path(path)


def _scores(scenes: Sequence[JudgedScene], score: float) -> list[float]:
    judged = {tuple(sorted(scene.outcomes)) for scene in scenes if scene.outcomes}
    if len(judged) > 1:
        raise ValueError("the scenes of a page were judged at different scores; judge all at the same ones")
    scores = judged.pop() if judged else tuple(sorted({*SCORES, score}))
    if score not in scores:
        raise ValueError(
            f"the scenes were judged at {list(scores)}, not at the score {score:g} that the page begins at"
        )
    return list(scores)


def _scene(scene: JudgedScene, class_names: Sequence[str], max_points: int) -> dict[str, Any]:
    points = np.asarray(scene.points, dtype=np.float32)
    if points.ndim != 2 or points.shape[1] < 3:
        raise ValueError(f"points of {scene.name} have shape {points.shape}, expected (N, 3 or more): x y z ...")
    points = points[np.isfinite(points).all(axis=1) & (np.abs(points[:, :3]) < FARTHEST).all(axis=1)]
    points = points[:: max(-(-len(points) // max_points), 1)]
    found = scene.detections.to("cpu")
    boxes = as_boxes(found.boxes.detach().numpy(), f"detections of {scene.name}")
    labels = as_labels(found.labels.numpy(), len(boxes), class_names)
    low, high = _extent(points, boxes)
    out: dict[str, Any] = {
        "name": scene.name,
        "points": _base64(np.round(points[:, :3] * CENTIMETRES).astype("<i2")),
        "low": low,
        "high": high,
        "found": _items(boxes, [class_names[n - 1] for n in labels], labels, _verdicts(scene.outcomes, "found")),
    }
    kept = np.flatnonzero(np.isfinite(boxes).all(axis=1))
    for item, score in zip(out["found"], found.scores[kept].tolist(), strict=True):
        item["score"] = round(score, 6)
    if points.shape[1] > 3 and len(points):
        brightest = max(float(np.quantile(points[:, 3], BRIGHT)), 1e-9)
        out["intensity"] = _base64(np.clip(255 * points[:, 3] / brightest, 0, 255).astype(np.uint8))
    if scene.gt_boxes is not None:
        truth = as_boxes(scene.gt_boxes, f"labelled boxes of {scene.name}")
        names = [""] * len(truth) if scene.gt_names is None else [str(name) for name in scene.gt_names]
        places = [class_names.index(name) + 1 if name in class_names else 0 for name in names]
        out["truth"] = _items(truth, names, places, _verdicts(scene.outcomes, "truth"))
    return out


def _verdicts(outcomes: Mapping[float, Outcomes], side: str) -> np.ndarray | None:
    """(S, M) verdicts at rising scores, or ``None``."""
    return np.stack([getattr(outcomes[s], side) for s in sorted(outcomes)]) if outcomes else None


def _items(
    boxes: np.ndarray, names: Sequence[str], labels: Sequence[int], verdicts: np.ndarray | None
) -> list[dict[str, Any]]:
    """Finite boxes (M, 7) with names, labels (0: none of the classes) and a verdict for each score."""
    for what, values in (("names", len(names)), ("verdicts", len(boxes) if verdicts is None else verdicts.shape[1])):
        if values != len(boxes):
            raise ValueError(f"{len(boxes)} boxes have {values} {what}; every box needs one")
    rows = []
    for i in np.flatnonzero(np.isfinite(boxes).all(axis=1)):
        row = {"box": [round(float(v), 4) for v in boxes[i]], "name": names[i], "label": int(labels[i])}
        rows.append(row if verdicts is None else {**row, "verdicts": verdicts[:, i].tolist()})
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
