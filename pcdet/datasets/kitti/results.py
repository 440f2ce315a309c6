"""Detections in KITTI's terms: annotations, label files, JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.info_dataset import without_stages
from pcdet.structures.boxes import boxes_to_kitti_camera, kitti_image_boxes, wrap_angle
from pcdet.structures.calibration import Calibration
from pcdet.utils.files import write_json, write_text


def detections_to_annos(
    boxes: np.ndarray,  # (M, 7+)
    scores: np.ndarray,  # (M,)
    labels: np.ndarray,  # (M,) 1-based
    class_names: Sequence[str],
    calib: Calibration,
    image_shape: np.ndarray,  # (2,) height, width
) -> dict[str, np.ndarray]:
    """One scene's detections as OpenPCDet's result dictionary.

    ``alpha`` is the observation angle, rotation_y plus the direction of the object seen from the LiDAR, in [-pi, pi).
    """
    boxes = boxes[:, :7]
    camera = boxes_to_kitti_camera(boxes, calib)
    return {
        "name": np.array(class_names)[labels - 1] if len(labels) else np.zeros(0, dtype="<U1"),
        "truncated": np.zeros(len(boxes)),
        "occluded": np.zeros(len(boxes)),
        "alpha": wrap_angle(-np.arctan2(-boxes[:, 1], boxes[:, 0]) + camera[:, 6]),
        "bbox": kitti_image_boxes(camera, calib, image_shape),
        "dimensions": camera[:, 3:6],
        "location": camera[:, :3],
        "rotation_y": camera[:, 6],
        "score": scores,
        "boxes_lidar": boxes,
        "pred_labels": labels,
    }


def label_lines(annos: Mapping[str, Any]) -> str:
    """The text of a KITTI result file: 16 fields a line, sizes as height, width, length."""
    lines = []
    for i, name in enumerate(annos["name"]):
        length, height, width = annos["dimensions"][i]
        numbers = [
            annos["alpha"][i],
            *annos["bbox"][i],
            height,
            width,
            length,
            *annos["location"][i],
            annos["rotation_y"][i],
            annos["score"][i],
        ]
        lines.append(f"{name} -1 -1 " + " ".join(f"{v:.4f}" for v in numbers) + "\n")
    return "".join(lines)


def write_results(results: Sequence[Mapping[str, Any]], folder: str | Path) -> None:
    """Write ``<frame_id>.txt`` in KITTI's format for every scene, also for an empty one, and ``results.json``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for annos in results:
        write_text(folder / f"{annos['frame_id']}.txt", label_lines(annos))
    write_json(folder / "results.json", without_stages(results))
