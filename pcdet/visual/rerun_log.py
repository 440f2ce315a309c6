"""Scenes with their boxes for the Rerun viewer (rerun.io), an optional package: pip install "pcdet[rerun]"."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pcdet.structures.calibration import Calibration
from pcdet.visual.image import read_image
from pcdet.visual.judged import JudgedScene
from pcdet.visual.marks import Marks, found_marks, truth_marks

TIMELINE = "scene"
LINE = 0.02  # metres: the radius of a box's edges


def log_to_rerun(
    scenes: Sequence[JudgedScene], path: str | Path | None = None, *, class_names: Sequence[str], score: float = 0.3
) -> None:
    """Send ``scenes`` to a viewer that is opened for them, or write them into the file ``path`` (``.rrd``).

    The time line ``scene`` goes from scene to scene. Of each are shown the points by height, detections from ``score``
    on and labelled boxes in the colours of the other pictures, and the camera image, over which Rerun projects them.

    Raises:
        ValueError: rerun-sdk is not installed or its viewer does not open, an array has another shape, or a label is
            not one of ``class_names``.
    """
    rerun = require_rerun()
    recording = rerun.RecordingStream("pcdet")
    if path is None:
        with _viewer_errors():
            rerun.spawn(recording=recording)
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        recording.save(path)
    recording.log("world", rerun.ViewCoordinates.FLU, static=True)  # x forward, y left, z up
    for position, scene in enumerate(scenes):
        recording.set_time(TIMELINE, sequence=position)
        _log_scene(rerun, recording, scene, class_names, score)
    with _viewer_errors():
        recording.flush()
    if path is not None:
        recording.disconnect()


def require_rerun() -> ModuleType:
    """The package. Raises ``ValueError`` saying how to install it where it is absent."""
    try:
        import rerun
    except ImportError as error:
        raise ValueError(f"--rerun and log_to_rerun need Rerun ({error}): pip install rerun-sdk") from error
    return rerun


@contextmanager
def _viewer_errors() -> Iterator[None]:
    """Rerun's own words where its viewer is not found, or finds no display and does not answer."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"the Rerun viewer does not open ({reason}); write a file for it with --rerun OUT.rrd"
        ) from error


def _log_scene(rerun: ModuleType, recording: Any, scene: JudgedScene, class_names: Sequence[str], score: float) -> None:
    found, outcomes = scene.above(score)
    boxes, labels, scores = (values.detach().cpu().numpy() for values in (found.boxes, found.labels, found.scores))
    recording.log("world/name", rerun.TextDocument(scene.name))
    points = scene.points[np.isfinite(scene.points[:, :3]).all(axis=1), :3]
    pixels = rerun.Radius.ui_points(1.5)
    recording.log("world/points", rerun.Points3D(points, colors=_shades(points[:, 2]), radii=pixels))
    marks = found_marks(boxes, labels, scores, outcomes, class_names, named=True)
    recording.log("world/found", _boxes(rerun, marks.finite()))
    # Sent for a scene without labels too: Rerun shows the last ones until others come.
    truth = truth_marks(scene.gt_boxes, scene.gt_names, outcomes)
    recording.log("world/labelled", _boxes(rerun, truth.finite()))
    if scene.calib is not None and scene.image is not None:
        image = read_image(scene.image)
        _log_camera(rerun, recording, scene.calib, image)
    else:
        recording.log("world/camera", rerun.Clear(recursive=True))


def _boxes(rerun: ModuleType, marks: Marks) -> Any:
    half = marks.boxes[:, 6] / 2
    zero = np.zeros(len(half))
    turns = np.stack([zero, zero, np.sin(half), np.cos(half)], axis=1)  # (M, 4) x y z w: about the upright axis
    return rerun.Boxes3D(
        centers=marks.boxes[:, :3],
        sizes=marks.boxes[:, 3:6],
        quaternions=turns,
        colors=[_rgb(color) for color in marks.colors],
        labels=list(marks.texts),
        radii=LINE,
    )


def _log_camera(rerun: ModuleType, recording: Any, calib: Calibration, image: np.ndarray) -> None:
    """The camera where it stands: P2 is K [I | t], so its place lies -t beside the origin of the rectified frame."""
    k = calib.P2[:, :3].astype(np.float64)  # (3, 3)
    offset = np.linalg.solve(k, calib.P2[:, 3].astype(np.float64))  # (3,)
    corners = np.concatenate([[-offset], np.eye(3) - offset])  # the camera's place and the ends of its axes
    place, *ends = calib.rect_to_lidar(corners)
    axes = np.stack([end - place for end in ends], axis=1)  # (3, 3) columns: the camera's x y z in the LiDAR frame
    recording.log("world/camera", rerun.Transform3D(translation=place, mat3x3=axes))
    height, width = image.shape[:2]
    recording.log("world/camera/image", rerun.Pinhole(image_from_camera=k / k[2, 2], resolution=[width, height]))
    recording.log("world/camera/image", rerun.Image(image))


def _shades(heights: np.ndarray) -> np.ndarray:
    """(N,) metres -> (N, 3) uint8, from blue to white as in the other pictures."""
    if not len(heights):
        return np.zeros((0, 3), dtype=np.uint8)
    low, high = np.percentile(heights, [2, 98])
    share = np.clip((heights - low) / max(high - low, 0.1), 0, 1)[:, None]
    return np.round([41, 82, 148] + share * ([237 - 41, 245 - 82, 255 - 148])).astype(np.uint8)


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))
