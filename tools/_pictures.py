"""Pictures of what a model found, for the demo and the evaluation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pcdet.structures.detections import Detections
from pcdet.structures.scene import Scene
from pcdet.visual import draw_bev, draw_confusion, draw_image_boxes, read_image


def draw_detections(
    scene: Scene,
    found: Detections,
    class_names: Sequence[str],
    folder: Path,
    image_path: Path | None,
    point_cloud_range: Sequence[float] | None = None,
) -> list[Path]:
    """``<frame>_bev.png`` and, where there is an image, ``<frame>_image.png``, with the labelled boxes if known."""
    truth = known_boxes(scene, class_names)
    title = f"{scene.frame_id}: {len(found)} objects found in {len(scene.points)} points"
    out = [
        draw_bev(
            scene.points,
            folder / f"{scene.frame_id}_bev.png",
            detections=found,
            gt_boxes=truth,
            class_names=class_names,
            point_cloud_range=point_cloud_range,
            title=title,
        )
    ]
    if image_path is not None and scene.calib is not None:
        out.append(
            draw_image_boxes(
                read_image(image_path),
                found.boxes.numpy(),
                scene.calib,
                folder / f"{scene.frame_id}_image.png",
                labels=found.labels.numpy(),
                scores=found.scores.numpy(),
                class_names=class_names,
                gt_boxes=truth,
            )
        )
    return out


def known_boxes(scene: Scene, class_names: Sequence[str]) -> np.ndarray | None:
    """(M, 7) labelled boxes of the wanted classes, or ``None`` without labels."""
    if scene.gt_boxes is None:
        return None
    return scene.gt_boxes[np.isin(scene.gt_names, class_names)]


def draw_results(dataset: Any, results: Sequence[dict[str, Any]], count: int, score: float, folder: Path) -> list[Path]:
    """Pictures of an evaluation: its first ``count`` scenes, or the confusion matrix of whole clouds."""
    if hasattr(dataset, "confusion"):
        return [draw_confusion(dataset.confusion(results), dataset.class_names, folder / "confusion.png")]
    out = []
    for result in results[:count]:
        scene = dataset.load_scene(result["index"])
        found = as_detections(result)
        limits = dataset.info.point_cloud_range
        out += draw_detections(
            scene, found[found.scores >= score], dataset.class_names, folder, image_of(dataset, scene), limits
        )
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
