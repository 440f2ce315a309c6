"""Pictures of what a model found, for the demo and the evaluation."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _common import VIEWER

from pcdet.structures.detections import Detections
from pcdet.structures.scene import Scene
from pcdet.visual import SCORES, JudgedScene, draw_bev, draw_image_boxes, log_to_rerun, read_image, write_page


def draw_scene(
    scene: JudgedScene,
    class_names: Sequence[str],
    score: float,
    folder: Path,
    point_cloud_range: Sequence[float] | None = None,
) -> list[Path]:
    """``<frame>_bev.png`` and, where there is an image, ``<frame>_image.png``, with labelled boxes and verdicts."""
    found, outcomes = scene.above(score)
    common = {
        "class_names": class_names, "gt_boxes": scene.gt_boxes, "gt_names": scene.gt_names, "outcomes": outcomes
    }  # fmt: skip
    title = f"{scene.name}: {len(found)} objects found in {len(scene.points)} points"
    bev = folder / f"{scene.name}_bev.png"
    out = [draw_bev(scene.points, bev, detections=found, point_cloud_range=point_cloud_range, title=title, **common)]
    if scene.image is not None and scene.calib is not None:
        path = folder / f"{scene.name}_image.png"
        boxes, labels, scores = (values.numpy() for values in (found.boxes, found.labels, found.scores))
        image = read_image(scene.image)
        out.append(draw_image_boxes(image, boxes, scene.calib, path, labels=labels, scores=scores, **common))
    return out


def show_scenes(given: argparse.Namespace, scenes: Sequence[JudgedScene], class_names: Sequence[str]) -> list[str]:
    """What --html and --rerun ask for; a line on each."""
    lines = []
    if given.html:
        path = write_page(scenes, given.html, class_names=class_names, score=given.score_thresh)
        lines.append(f"{len(scenes)} scenes are in {path} ({path.stat().st_size / 1e6:.1f} MB)")
    if given.rerun:
        path = None if given.rerun == VIEWER else given.rerun
        log_to_rerun(scenes, path, class_names=class_names, score=given.score_thresh)
        lines.append(f"{len(scenes)} scenes are in {path}" if path else f"{len(scenes)} scenes were sent to Rerun")
    return lines


def judged_scenes(dataset: Any, results: Sequence[dict[str, Any]], score: float) -> list[JudgedScene]:
    """Results of an evaluation with their clouds, and with verdicts where the split has labels."""
    verdicts = dataset.outcomes(results, sorted({*SCORES, score})) if dataset.has_labels else [{} for _ in results]
    out = []
    for result, outcomes in zip(results, verdicts, strict=True):
        scene = dataset.load_scene(result["index"])
        found, image = as_detections(result), image_of(dataset, scene)
        boxes, names = scene.gt_boxes, scene.gt_names
        out.append(JudgedScene(scene.frame_id, scene.points, found, boxes, names, outcomes, scene.calib, image))
    return out


def as_detections(result: dict[str, Any]) -> Detections:
    """The arrays of a result as tensors."""
    boxes = torch.as_tensor(result["boxes_lidar"], dtype=torch.float32)  # (M, 7 + E)
    labels = torch.as_tensor(result["pred_labels"], dtype=torch.int64)
    return Detections(boxes, torch.as_tensor(result["score"], dtype=torch.float32), labels)


def image_of(dataset: Any, scene: Scene) -> Path | None:
    """The camera image of a scene, if the data set has one."""
    if not hasattr(getattr(dataset, "folder", None), "image_path"):
        return None
    path = dataset.folder.image_path(dataset.split, scene.frame_id)
    return path if path.is_file() else None
