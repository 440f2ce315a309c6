"""Ground truths and detections as the analysis wants them, from KITTI's or from LiDAR annotations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcdet.evaluation.classes import NEIGHBOURS
from pcdet.evaluation.kitti.average_precision import DIFFICULTIES, Scenes
from pcdet.evaluation.kitti.frames import join_frames
from pcdet.evaluation.kitti.matching import COUNTED, IGNORED, OTHER
from pcdet.evaluation.kitti.measure import Candidates, candidates
from pcdet.evaluation.kitti.overlap import Pairs, pair_up, solid_overlaps
from pcdet.evaluation.lidar.bands import Band
from pcdet.evaluation.lidar.boxes import join_detections, join_truths

ALL = Band("all", "all")


@dataclass(frozen=True)
class Side:
    """Objects of all frames, frame after frame; frame f holds the objects starts[f]:starts[f + 1]."""

    names: np.ndarray  # (N,) lower case
    scores: np.ndarray  # (N,)
    distance: np.ndarray  # (N,) metres on the ground
    heading: np.ndarray  # (N,) radians about the upright axis
    starts: np.ndarray  # (F + 1,)
    points: np.ndarray | None = None  # (N,) LiDAR points inside, where somebody counted
    occluded: np.ndarray | None = None  # (N,) KITTI's level

    def inside(self, band: Band) -> np.ndarray:
        """(N,) bool. Raises ``ValueError`` for a band of what is not known."""
        if band.kind == "all":
            return np.ones(len(self.names), dtype=bool)
        values = {"distance": self.distance, "points": self.points, "occlusion": self.occluded}[band.kind]
        if values is None:
            raise ValueError(f"nothing is known about {band.kind}, which the band {band.name} asks for")
        return (values >= band.low) & (values < band.high)


@dataclass(frozen=True)
class Objects:
    """Both sides, their overlaps in space, and what no number may count.

    ``hidden`` ground truths are those that only their occlusion keeps from counting: bands by occlusion want them.
    """

    truth: Side
    found: Side
    pairs: Pairs
    overlaps: np.ndarray  # (P,) 3-D
    asked: np.ndarray  # (G,) bool
    hidden: np.ndarray  # (G,) bool
    low: np.ndarray  # (D,) bool: never counted, but they can be matched
    neighbours: Mapping[str, str] = field(default_factory=dict)  # class -> the one that is neutral to it
    removed: Mapping[str, np.ndarray] = field(default_factory=dict)  # filter -> (G,) bool, no object in two of them

    def states(self, name: str, band: Band = ALL) -> tuple[np.ndarray, np.ndarray]:
        """(G,) and (D,) int64: which objects count for a class in a band, as the kernels of matching want them."""
        name = name.lower()
        same, near = self.truth.names == name, self.truth.names == self.neighbours.get(name, "")
        asked = self.asked | self.hidden if band.kind == "occlusion" else self.asked
        truth = np.select([same & asked & self.truth.inside(band), same | near], [COUNTED, IGNORED], OTHER)
        found = np.select([self.low, self.found.names == name], [IGNORED, COUNTED], OTHER)
        return truth.astype(np.int64), found.astype(np.int64)

    def candidates(self, name: str, min_overlap: float, band: Band = ALL) -> Candidates:
        """What a class is matched from. Detections outside a band by distance are no false positives of it."""
        forgiven = ~self.found.inside(band) if band.kind == "distance" else None
        turn = self.truth.heading[self.pairs.truth] - self.found.heading[self.pairs.found]
        common = (self.pairs, self.overlaps, *self.states(name, band), self.found.scores)
        return candidates(*common, min_overlap, forgiven=forgiven, turn=turn)


def kitti_objects(
    gt_annos: Sequence[Mapping[str, Any]],
    dt_annos: Sequence[Mapping[str, Any]],
    *,
    points: Sequence[np.ndarray] | None = None,
    lidar_only: bool = False,
) -> Objects:
    """From annotations in KITTI's camera frame; what counts is what KITTI's hard level counts.

    ``points`` (M,) of each frame are the LiDAR points in the labelled boxes. Errors are those of
    :func:`pcdet.evaluation.kitti.evaluate`.
    """
    scenes = Scenes(join_frames(gt_annos, scored=False), join_frames(dt_annos, scored=True), not lidar_only)
    truth, hard = scenes.truth, DIFFICULTIES[-1]
    none = np.zeros(len(truth), dtype=bool)
    short = scenes.truth_height() <= hard.min_height if scenes.image else none
    cut = (truth.truncated > hard.max_truncation) & ~short
    covered = (truth.occluded > hard.max_occlusion) & ~short & ~cut
    low = scenes.found_height() < hard.min_height if scenes.image else np.zeros(len(scenes.found), dtype=bool)
    counted = None if points is None else np.concatenate([np.zeros(0), *points])
    if counted is not None and len(counted) != len(truth):
        raise ValueError(f"{len(counted)} point counts for {len(truth)} ground truths; every label needs one")
    sides = [
        Side(o.names, o.scores, np.hypot(o.boxes[:, 0], o.boxes[:, 2]), -o.boxes[:, 6], o.starts)
        for o in (truth, scenes.found)
    ]
    sides[0] = Side(**{**vars(sides[0]), "points": counted, "occluded": truth.occluded})
    removed = {"too low in the image": short, "too truncated": cut, "too occluded": covered}
    asked = ~(short | cut | covered)
    return Objects(*sides, scenes.pairs, scenes.overlaps["3d"], asked, covered, low, NEIGHBOURS, removed)


def lidar_objects(
    gt_annos: Sequence[Mapping[str, Any]],
    dt_annos: Sequence[Mapping[str, Any]],
    *,
    ignored: Sequence[np.ndarray] | None = None,
    why_ignored: str = "ignored",
) -> Objects:
    """From annotations in the LiDAR frame, as :func:`pcdet.evaluation.lidar.evaluate` takes them."""
    truth, found = join_truths(gt_annos, ignored), join_detections(dt_annos)
    pairs = pair_up(truth, found)
    counted = truth.points if all("num_points_in_gt" in frame for frame in gt_annos) else None
    sides = [
        Side(o.names, o.scores, o.distance, o.boxes[:, 6], o.starts, points)
        for o, points in ((truth, counted), (found, None))
    ]
    removed = {why_ignored: truth.ignored}
    none = np.zeros(len(truth), dtype=bool)
    low = np.zeros(len(found), dtype=bool)
    overlaps = solid_overlaps(truth, found, pairs)[1]
    return Objects(*sides, pairs, overlaps, ~truth.ignored, none, low, {}, removed)
