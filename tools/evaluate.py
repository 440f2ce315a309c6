"""Evaluate result files in KITTI's format against label files: KITTI's metric, without a model, data set or GPU."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import run

if TYPE_CHECKING:
    import numpy as np

CLASSES = ("Car", "Pedestrian", "Cyclist")
SCORE = 0.3  # of --analysis without --score_thresh


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--gt", type=Path, required=True, help="folder of label files, or one that holds label_2")
    add("--pred", type=Path, required=True, help="folder of result files (16 fields a line), or one that holds data")
    add("--classes", nargs="+", default=CLASSES, help="what to evaluate (default: Car Pedestrian Cyclist)")
    add("--frames", type=Path, help="file with the frames to evaluate, one a line (default: all of --gt)")
    add("--missing_is_empty", action="store_true", help="take a missing result file for a frame without detections")
    add("--lidar_only", action="store_true", help="do without 2-D boxes: no height in the image, no bbox, no aos")
    add(
        "--analysis",
        type=Path,
        metavar="FOLDER",
        help="also measure by distance, occlusion, heading, score; with charts",
    )
    add(
        "--clouds", type=Path, help="with --analysis: folder with velodyne and calib, to count the points of each label"
    )
    add(
        "--score_thresh",
        type=float,
        help=f"with --analysis: recall and confusions count from this score on (default: {SCORE})",
    )
    add("--json", type=Path, help="write every number to this file: ap and ap_loose, null where not evaluated")
    given = parser.parse_args(arguments)
    if given.analysis is None:
        alone = [f"--{name}" for name in ("clouds", "score_thresh") if getattr(given, name) is not None]
        if alone:
            parser.error(f"{' and '.join(alone)}: only --analysis uses this, so give --analysis FOLDER too")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, evaluate, print."""
    given = parse(arguments)
    from pcdet.evaluation.kitti import average_precisions
    from pcdet.evaluation.kitti.report import as_json, text_of
    from pcdet.utils.files import write_json

    truths, founds = read(given)
    entries = average_precisions(truths, founds, given.classes, lidar_only=given.lidar_only)
    print(text_of(entries, len(truths)))
    content = {"frames": len(truths), **as_json(entries)}
    if given.analysis:
        content["analysis"] = analyse(given, truths, founds)
    if given.json:
        write_json(given.json, content)
        print(f"written to {given.json}")
    return 0


def analyse(given: argparse.Namespace, truths: list[dict[str, Any]], founds: list[dict[str, Any]]) -> dict[str, Any]:
    """Print and write the analysis; its numbers."""
    from _analysis import write_analysis

    from pcdet.evaluation.analysis import analyse, kitti_objects

    points = [points_in_labels(given.clouds, frame) for frame in truths] if given.clouds else None
    objects = kitti_objects(truths, founds, points=points, lidar_only=given.lidar_only)
    analysis = analyse(objects, given.classes, score=SCORE if given.score_thresh is None else given.score_thresh)
    print(f"\n{analysis.text}")
    print("written to " + ", ".join(map(str, write_analysis(analysis, given.analysis))))
    return analysis.as_json()


def points_in_labels(folder: Path, frame: dict[str, Any]) -> "np.ndarray":
    """(M,) LiDAR points in the box of every label of a frame; 0 for DontCare, which has no box."""
    import numpy as np

    from pcdet.datasets.clouds import read_cloud
    from pcdet.ops.points_in_boxes import points_in_boxes_mask
    from pcdet.structures.boxes import boxes_from_kitti_camera
    from pcdet.structures.calibration import Calibration

    points, _ = read_cloud(folder / "velodyne" / f"{frame['frame_id']}.bin")
    calib = Calibration.from_file(folder / "calib" / f"{frame['frame_id']}.txt")
    boxes = np.column_stack([frame["location"], frame["dimensions"], frame["rotation_y"]])
    return points_in_boxes_mask(points[:, :3], boxes_from_kitti_camera(boxes, calib)).sum(axis=1)


def read(given: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Labels and results of every frame. Says which result files no wanted frame needs."""
    from pcdet.datasets.splits import read_split
    from pcdet.evaluation.kitti import read_annos
    from pcdet.evaluation.kitti.files import file_stems

    labels, results = folder_of_texts(given.gt, "label_2"), folder_of_texts(given.pred, "data")
    frames = list(read_split(given.frames)) if given.frames else file_stems(labels)
    if not frames:
        raise ValueError(f"{given.frames or labels} names no frame to evaluate")
    truths = read_annos(labels, frames, scored=False)
    unused = sorted(set(file_stems(results)) - set(frames))
    if unused:
        print(f"{len(unused)} result files, such as {unused[0]}.txt, belong to no frame that is evaluated: left out")
    try:
        return truths, read_annos(results, frames, scored=True, missing_is_empty=given.missing_is_empty)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}. Choose frames with --frames, or give --missing_is_empty") from error


def folder_of_texts(folder: Path, inner: str) -> Path:
    """The folder itself, or the one inside it where its text files lie in KITTI's layout."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder")
    return folder / inner if (folder / inner).is_dir() and not any(folder.glob("*.txt")) else folder


if __name__ == "__main__":
    run(main)
