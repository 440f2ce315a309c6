"""Detections on own data: annotations and text files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pcdet.datasets.info_dataset import without_stages
from pcdet.utils.files import write_json, write_text


def result_lines(annos: Mapping[str, Any]) -> str:
    """``x y z dx dy dz heading class score``, one detection a line: the label format and the score."""
    rows = zip(annos["boxes_lidar"], annos["name"], annos["score"], strict=True)
    return "".join(" ".join(f"{v:.4f}" for v in box[:7]) + f" {name} {score:.4f}\n" for box, name, score in rows)


def write_results(results: Sequence[Mapping[str, Any]], folder: str | Path) -> None:
    """Write ``<frame_id>.txt`` for every scene, also for an empty one, and ``results.json``."""
    folder = Path(folder)
    for annos in results:
        write_text(folder / f"{annos['frame_id']}.txt", result_lines(annos))
    write_json(folder / "results.json", without_stages(results))
