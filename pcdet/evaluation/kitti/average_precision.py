"""KITTI's average precision of every class, metric and difficulty.

Geiger et al., "Are we ready for autonomous driving?", 2012, sec. 2.4; Simonelli et al., "Disentangling monocular 3D
object detection", 2019, sec. 5 (40 recall positions). The order of matching is that of KITTI's devkit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pcdet.evaluation.classes import NEIGHBOURS, min_overlaps_of
from pcdet.evaluation.kitti.frames import Objects, join_frames
from pcdet.evaluation.kitti.matching import COUNTED, IGNORED, OTHER
from pcdet.evaluation.kitti.measure import FORGIVEN, LOW, Candidates, Entry, candidates, measure
from pcdet.evaluation.kitti.overlap import Pairs, bbox_overlaps, dont_care_shares, pair_up, solid_overlaps


class Difficulty(NamedTuple):
    """What a ground truth may be at most (occlusion, truncation) and must be above (height, pixels)."""

    name: str
    min_height: float
    max_occlusion: float
    max_truncation: float


DIFFICULTIES = (
    Difficulty("easy", 40, 0, 0.15),
    Difficulty("moderate", 25, 1, 0.30),
    Difficulty("hard", 25, 2, 0.50),
)
METRICS = ("bbox", "bev", "3d", "aos")
NO_ALPHA = -10.0  # KITTI's "not estimated"
NO_PLACE = -1000.0


@dataclass(frozen=True)
class Scenes:
    """Ground truths and detections of all frames with what is computed once for all classes."""

    truth: Objects
    found: Objects
    image: bool = True  # False: heights in the image do not matter, and nothing is measured there

    @cached_property
    def _meeting(self) -> tuple[Pairs, dict[str, np.ndarray]]:
        pairs = pair_up(self.truth, self.found)
        bev, solid = solid_overlaps(self.truth, self.found, pairs)
        overlaps = {"bbox": bbox_overlaps(self.truth, self.found, pairs), "bev": bev, "3d": solid}
        meet = (overlaps["bbox"] > 0) | (bev > 0)  # boxes that share volume share ground
        kept = {metric: values[meet] for metric, values in overlaps.items()}
        return Pairs(pairs.truth[meet], pairs.found[meet]), kept

    @property
    def pairs(self) -> Pairs:
        """Every ground truth with every detection of its frame that it overlaps in the image or on the ground."""
        return self._meeting[0]

    @property
    def overlaps(self) -> dict[str, np.ndarray]:
        """(P,) of each metric."""
        return self._meeting[1]

    @cached_property
    def turn(self) -> np.ndarray:
        """(P,) difference of alpha."""
        return self.truth.alpha[self.pairs.truth] - self.found.alpha[self.pairs.found]

    @cached_property
    def dont_care(self) -> np.ndarray:
        """(D,) part of each detection inside a DontCare region of the image."""
        return dont_care_shares(self.truth, self.found, self.pairs)

    @cached_property
    def has_alpha(self) -> bool:
        """One unknown alpha, of whatever class, switches orientation off."""
        return not (self.found.alpha == NO_ALPHA).any()

    def truth_height(self) -> np.ndarray:
        """(G,) pixels."""
        return self.truth.bbox[:, 3] - self.truth.bbox[:, 1]

    def found_height(self) -> np.ndarray:
        """(D,) pixels, whichever way up the box is."""
        return np.abs(self.found.bbox[:, 1] - self.found.bbox[:, 3])


def average_precisions(
    gt_annos: Sequence[Mapping[str, Any]],
    dt_annos: Sequence[Mapping[str, Any]],
    class_names: Sequence[str],
    *,
    min_overlaps: Mapping[str, tuple[float, float]] | None = None,
    lidar_only: bool = False,
) -> list[Entry]:
    """Average precision of every class under bbox, bev, 3d, aos, strict and loose, each at three difficulties.

    Arguments and errors are those of :func:`pcdet.evaluation.kitti.evaluate`.
    """
    chosen = min_overlaps_of(class_names, min_overlaps)
    if len(gt_annos) != len(dt_annos):
        raise ValueError(f"{len(gt_annos)} frames of ground truths but {len(dt_annos)} of detections; pair them up")
    scenes = Scenes(join_frames(gt_annos, scored=False), join_frames(dt_annos, scored=True), not lidar_only)
    return [e for name, pair in zip(class_names, chosen, strict=True) for e in _entries(scenes, name, *pair)]


def _entries(scenes: Scenes, name: str, strict: float, loose: float) -> Iterator[Entry]:
    states = [_states(scenes, name.lower(), difficulty) for difficulty in DIFFICULTIES]
    counts = [tuple(int((s == COUNTED).sum()) for s in side) for side in zip(*states, strict=True)]
    removed = _removed(scenes, name.lower(), strict)
    seen = _seen(scenes, name.lower())
    for is_loose, overlap in ((False, strict), (True, loose)):
        for metric in ("bbox", "bev", "3d") if scenes.image else ("bev", "3d"):
            least = strict if metric == "bbox" else overlap  # the image has no loose overlap
            pairs = [measure(_candidates(scenes, metric, s, least)) for s in states] if seen[metric] else None
            plain, turned = zip(*pairs, strict=True) if pairs else (None, None)
            yield Entry(name, metric, is_loose, least, plain, *counts, *removed)
            if metric == "bbox":
                yield Entry(name, "aos", is_loose, least, turned if scenes.has_alpha else None, *counts, *removed)


def _states(scenes: Scenes, name: str, difficulty: Difficulty) -> tuple[np.ndarray, np.ndarray]:
    """(G,) and (D,) int64: which ground truths and detections count, are ignored, or are not looked at."""
    truth, found = scenes.truth, scenes.found
    beyond = (truth.occluded > difficulty.max_occlusion) | (truth.truncated > difficulty.max_truncation)
    low = np.zeros(len(found), dtype=bool)
    if scenes.image:
        beyond |= scenes.truth_height() <= difficulty.min_height
        low = scenes.found_height() < difficulty.min_height
    same, near = truth.names == name, truth.names == NEIGHBOURS.get(name, "")
    truth_state = np.select([same & ~beyond, same | near], [COUNTED, IGNORED], OTHER)
    # Low detections are ignored whatever their class, and may still take a ground truth.
    found_state = np.select([low, found.names == name], [IGNORED, COUNTED], OTHER)
    return truth_state.astype(np.int64), found_state.astype(np.int64)


def _removed(scenes: Scenes, name: str, strict: float) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Filter -> how many ground truths of a class it leaves out at each difficulty, and the same for detections.

    An object that several filters leave out is counted for the first. ``strict`` is the overlap from which a DontCare
    region forgives a detection in the image.
    """
    truths, founds = [], []
    mine, found = scenes.truth.names == name, scenes.found.names == name
    for difficulty in DIFFICULTIES:
        masks = {
            LOW: scenes.truth_height() <= difficulty.min_height if scenes.image else np.zeros_like(mine),
            "too occluded": scenes.truth.occluded > difficulty.max_occlusion,
            "too truncated": scenes.truth.truncated > difficulty.max_truncation,
        }
        left, counts = mine, []
        for mask in masks.values():
            counts.append(int((left & mask).sum()))
            left = left & ~mask
        truths.append(counts)
        low = scenes.found_height() < difficulty.min_height if scenes.image else np.zeros_like(found)
        forgiven = scenes.dont_care > strict if scenes.image else np.zeros_like(found)
        founds.append([int((found & low).sum()), int((found & ~low & forgiven).sum())])
    of_truths, of_founds = zip(*truths, strict=True), zip(*founds, strict=True)
    filters = (LOW, "too occluded", "too truncated")
    return dict(zip(filters, of_truths, strict=True)), dict(zip((LOW, FORGIVEN), of_founds, strict=True))


def _seen(scenes: Scenes, name: str) -> dict[str, bool]:
    """Under which metrics a class is evaluated: those for which one of its detections has what is measured."""
    mine = scenes.found.names == name
    x, y, z, length, height, width, _ = scenes.found.boxes[mine].T
    ground = (x != NO_PLACE) & (z != NO_PLACE) & (width > 0) & (length > 0)
    return {
        "bbox": bool((scenes.found.bbox[mine, 0] >= 0).any()),
        "bev": bool(ground.any()),
        "3d": bool((ground & (y != NO_PLACE) & (height > 0)).any()),
    }


def _candidates(scenes: Scenes, metric: str, states: tuple[np.ndarray, np.ndarray], min_overlap: float) -> Candidates:
    forgiven = scenes.dont_care > min_overlap if metric == "bbox" else None
    common = (scenes.pairs, scenes.overlaps[metric], *states, scenes.found.scores)
    return candidates(*common, min_overlap, forgiven=forgiven, turn=scenes.turn)
