"""KITTI's matching and average precision over LiDAR boxes, without image, calibration or difficulty labels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pcdet.evaluation.classes import MinOverlap, min_overlaps_of
from pcdet.evaluation.kitti.matching import COUNTED, IGNORED, OTHER
from pcdet.evaluation.kitti.measure import Entry, candidates, measure
from pcdet.evaluation.kitti.overlap import pair_up, solid_overlaps
from pcdet.evaluation.kitti.precision import RECALL_POSITIONS
from pcdet.evaluation.kitti.report import table_of
from pcdet.evaluation.lidar.bands import Band, make_bands
from pcdet.evaluation.lidar.boxes import LidarObjects, join_detections, join_truths
from pcdet.evaluation.report import EvalReport


def evaluate(
    gt_annos: Sequence[Mapping[str, Any]],
    dt_annos: Sequence[Mapping[str, Any]],
    class_names: Sequence[str],
    *,
    min_overlaps: Mapping[str, tuple[float, float]] | None = None,
    bands: Sequence[Band] = make_bands((30, 50)),
    ignored: Sequence[np.ndarray] | None = None,
    why_ignored: str = "ignored",
) -> EvalReport:
    """AP in 3-D and from above, with 40 and 11 recall positions, at strict and loose overlaps, in each band.

    A ground truth outside a band is neutral there. A detection outside a band by distance is no false positive of
    that band, and still finds a ground truth inside it, so that a border between two boxes costs nothing; bands by
    points hold every unmatched detection against each band, because nobody knows how many points it should have had.

    Args:
        gt_annos: One dictionary a frame: ``name`` (M,), ``gt_boxes_lidar`` (M, 7) and, for bands by points,
            ``num_points_in_gt`` (M,).
        dt_annos: The same frames: ``name`` (D,), ``boxes_lidar`` (D, 7), ``score`` (D,). Only their order matters.
        class_names: What to evaluate. Names are compared without case; no class is neutral for another.
        min_overlaps: Class -> (strict, loose); by default KITTI's for names that KITTI has, else 0.5 and 0.25.
        bands: The levels, see :func:`make_bands`.
        ignored: (M,) bool of each frame: ground truths that are neutral in every band, and ``why_ignored``.

    Returns:
        ``metrics`` as ``Vehicle_3d/all_R40``, ``Vehicle_bev_loose/0-30m_R11`` (percent), without those that no ground
        truth stands behind, and the text, where these read n/a.

    Raises:
        ValueError: Frames or arrays do not pair up, a score is not finite, or bands by points lack counts.
    """
    chosen = min_overlaps_of(class_names, min_overlaps)
    if len(gt_annos) != len(dt_annos):
        raise ValueError(f"{len(gt_annos)} frames of ground truths but {len(dt_annos)} of detections; pair them up")
    if any(band.kind == "points" for band in bands) and not all("num_points_in_gt" in frame for frame in gt_annos):
        raise ValueError("bands by points need num_points_in_gt in every frame; make the infos again")
    truth, found = join_truths(gt_annos, ignored), join_detections(dt_annos)
    wanted = np.isin(truth.names, [name.lower() for name in class_names])
    if not (wanted & ~truth.ignored).any():
        why = f"no ground truth of {', '.join(class_names)} in {len(gt_annos)} frames, metrics skipped"
        return EvalReport({}, f"{why} ({len(found)} detections)")
    entries = list(_entries(truth, found, class_names, chosen, bands))
    text = _text(entries, bands, len(gt_annos), _removed(truth, class_names), why_ignored)
    return EvalReport(_metrics(entries, bands), text)


def _entries(
    truth: LidarObjects,
    found: LidarObjects,
    class_names: Sequence[str],
    min_overlaps: Sequence[MinOverlap],
    bands: Sequence[Band],
) -> Iterator[Entry]:
    pairs = pair_up(truth, found)
    overlaps = dict(zip(("bev", "3d"), solid_overlaps(truth, found, pairs), strict=True))
    for name, least in zip(class_names, min_overlaps, strict=True):
        found_state = np.where(found.names == name.lower(), COUNTED, OTHER)  # (D,)
        truth_states = [_truth_state(truth, name.lower(), band) for band in bands]  # (G,) each
        outside = [~_inside(found, band) if band.kind == "distance" else None for band in bands]
        truths = tuple(int((state == COUNTED).sum()) for state in truth_states)
        # Of detections, those that can be right or wrong in a band.
        founds = tuple(int(((found_state == COUNTED) & ~(False if o is None else o)).sum()) for o in outside)
        for loose, overlap in ((False, least.strict), (True, least.loose)):
            for metric in ("3d", "bev"):
                matched = [
                    candidates(pairs, overlaps[metric], state, found_state, found.scores, overlap, forgiven=beyond)
                    for state, beyond in zip(truth_states, outside, strict=True)
                ]
                yield Entry(name, metric, loose, overlap, tuple(measure(m)[0] for m in matched), truths, founds)


def _inside(objects: LidarObjects, band: Band) -> np.ndarray:
    """(N,) bool."""
    if band.kind == "all":
        return np.ones(len(objects), dtype=bool)
    values = objects.distance if band.kind == "distance" else objects.points
    return (values >= band.low) & (values < band.high)


def _truth_state(truth: LidarObjects, name: str, band: Band) -> np.ndarray:
    same = truth.names == name
    return np.select([same & _inside(truth, band) & ~truth.ignored, same], [COUNTED, IGNORED], OTHER)


def _removed(truth: LidarObjects, class_names: Sequence[str]) -> dict[str, int]:
    """Ground truths of each class that no band asks for."""
    counts = {name: int((truth.ignored & (truth.names == name.lower())).sum()) for name in class_names}
    return {name: count for name, count in counts.items() if count}


def _metrics(entries: Sequence[Entry], bands: Sequence[Band]) -> dict[str, float]:
    out = {}
    for entry in entries:
        tag = f"{entry.class_name}_{entry.metric}" + ("_loose" if entry.loose else "")
        for band, score, truths in zip(bands, entry.scores, entry.ground_truths, strict=True):
            if truths:
                values = {"R40": score.r40, "R11": score.r11, "exact": score.exact}
                out |= {f"{tag}/{band.name}_{kind}": v for kind, v in values.items() if v is not None}
    return out


def metric_names(class_names: Sequence[str], bands: Sequence[Band]) -> set[str]:
    """Every name that :func:`evaluate` may give for these classes and bands."""
    heads = [f"{name}_{metric}{loose}" for name in class_names for metric in ("3d", "bev") for loose in ("", "_loose")]
    return {f"{head}/{band.name}_{kind}" for head in heads for band in bands for kind in ("R40", "R11", "exact")}


def _text(entries: Sequence[Entry], bands: Sequence[Band], frames: int, removed: Mapping[str, int], why: str) -> str:
    """Warnings and a table; KITTI's layout with the bands in the place of difficulties."""
    levels = ", ".join(band.name for band in bands)
    lines = [f"LiDAR-frame AP over {frames} frames, in percent at {levels}. R40, R11: recall positions."]
    if removed:
        lines.append(f"Not asked for ({why}): " + ", ".join(f"{name} {count}" for name, count in removed.items()))
    for entry in (e for e in entries if e.metric == "3d" and not e.loose):
        truths = entry.ground_truths[0]
        if not truths:
            lines.append(f"WARNING: no ground truth of {entry.class_name}, so its AP says nothing")
        elif min(n for n in entry.ground_truths if n) < RECALL_POSITIONS:
            counts = "/".join(map(str, entry.ground_truths))
            lines.append(
                f"WARNING: {entry.class_name} has {counts} ground truths; below {RECALL_POSITIONS} the sampled AP of "
                "perfect detections is below 100, so read the exact AP too"
            )
        if truths and not entry.detections[0]:
            lines.append(f"WARNING: no {entry.class_name} was detected")
    return "\n".join([*lines, "", table_of(entries)])
