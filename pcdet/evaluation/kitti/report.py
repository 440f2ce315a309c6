"""Entries of the metric as a table, as OpenPCDet's lines, as warnings and as numbers for TensorBoard."""

from collections.abc import Iterator, Sequence
from typing import Any

from pcdet.evaluation.kitti.average_precision import DIFFICULTIES, METRICS
from pcdet.evaluation.kitti.measure import Entry, Score
from pcdet.evaluation.kitti.precision import RECALL_POSITIONS
from pcdet.evaluation.report import NOT_EVALUATED, aligned

# OpenPCDet's words for the metrics, in its order of lines and of TensorBoard tags.
TAGS = {"bbox": "image", "bev": "bev", "3d": "3d", "aos": "aos"}


def metrics_of(entries: Sequence[Entry]) -> dict[str, float]:
    """Tags such as ``Car_3d/easy_R40`` -> percent; the loose overlaps are tagged ``Car_3d_loose/...``.

    What is not evaluated is 0, as in OpenPCDet, except orientation, which is left out where alpha is unknown.
    ``.../easy_exact`` is there where the ground truths are too few for sampled recall.
    """
    out = {}
    for entry in _without_repeats(entries):
        if _orientation_is_off(entry, entries):
            continue
        tag = f"{entry.class_name}_{TAGS[entry.metric]}" + ("_loose" if entry.loose else "")
        for difficulty, score in zip(DIFFICULTIES, entry.scores or (None,) * 3, strict=True):
            out[f"{tag}/{difficulty.name}_R40"] = score.r40 if score else 0.0
            out[f"{tag}/{difficulty.name}_R11"] = score.r11 if score else 0.0
            if score and score.exact is not None:
                out[f"{tag}/{difficulty.name}_exact"] = score.exact
    return out


def metric_names(class_names: Sequence[str]) -> set[str]:
    """Every tag that :func:`metrics_of` may give for these classes."""
    levels = [f"{d.name}_{kind}" for d in DIFFICULTIES for kind in ("R40", "R11", "exact")]
    heads = [f"{name}_{tag}{loose}" for name in class_names for tag in TAGS.values() for loose in ("", "_loose")]
    return {f"{head}/{level}" for head in heads for level in levels}


def as_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """Every number, unrounded: ``ap`` and ``ap_loose`` as metric -> class -> R11, R40 -> easy, moderate, hard.

    Percent; ``None`` where a class or orientation is not evaluated. Beside them ``min_overlap`` and
    ``min_overlap_loose`` in the same order of keys, and ``ground_truths`` and ``detections``, the counts behind the
    numbers: an AP from no ground truth is 0 here, as KITTI has it, and says nothing. ``ground_truths_left_out`` and
    ``detections_left_out`` say which filter took how many away.
    """
    out: dict[str, Any] = {"order": [d.name for d in DIFFICULTIES], "unit": "percent"}
    for loose, suffix in ((False, ""), (True, "_loose")):
        ap: dict[str, dict[str, Any]] = {}
        overlap: dict[str, dict[str, float]] = {}
        for entry in (e for e in entries if e.loose == loose):
            by_kind = {kind: _values(entry, kind.lower()) for kind in ("R11", "R40")}
            ap.setdefault(entry.metric, {})[entry.class_name] = by_kind
            overlap.setdefault(entry.metric, {})[entry.class_name] = entry.min_overlap
        out |= {f"ap{suffix}": ap, f"min_overlap{suffix}": overlap}
    for count in ("ground_truths", "detections"):
        out[count] = {e.class_name: list(getattr(e, count)) for e in entries}
    for key, name in (("ground_truths_left_out", "removed_truths"), ("detections_left_out", "removed_detections")):
        out[key] = {e.class_name: {why: list(n) for why, n in getattr(e, name).items()} for e in entries}
    return out


def _values(entry: Entry, kind: str) -> list[float] | None:
    return None if entry.scores is None else [getattr(score, kind) for score in entry.scores]


def text_of(entries: Sequence[Entry], frames: int) -> str:
    """The whole report: warnings, our table, OpenPCDet's lines."""
    parts = [f"KITTI metric over {frames} frames. AP in percent at easy, moderate, hard; R40, R11: recall positions."]
    parts += filters_of(entries)
    parts += [f"WARNING: {warning}" for warning in warnings_of(entries)]
    parts += ["", table_of(entries), "", openpcdet_lines(entries)]
    return "\n".join(parts)


def filters_of(entries: Sequence[Entry]) -> Iterator[str]:
    """Which filter takes how many ground truths and detections of each class away at the three difficulties."""
    for entry in entries:
        if entry.metric != "3d" or entry.loose:
            continue
        parts = []
        for what, removed in (("ground truths", entry.removed_truths), ("detections", entry.removed_detections)):
            numbers = [f"{_slashed(counts)} {why}" for why, counts in removed.items() if any(counts)]
            parts += [f"{what} {', '.join(numbers)}"] if numbers else []
        if parts:
            yield f"{entry.class_name}, left out: {'; '.join(parts)}"


def warnings_of(entries: Sequence[Entry]) -> Iterator[str]:
    """What a reader must know before believing a number, class by class."""
    for entry in entries:
        if entry.metric != "3d" or entry.loose:
            continue
        name, truths, found = entry.class_name, entry.ground_truths, entry.detections
        if entry.too_low and not any(truths):
            yield (
                f"all {entry.too_low} ground truths of {name} ignored by min height: their 2-D boxes are at most "
                f"{DIFFICULTIES[-1].min_height:g} px high. Without 2-D boxes, evaluate with lidar_only"
            )
        elif not any(truths):
            yield f"no ground truth of {name} counts, so its AP says nothing"
        elif min(n for n in truths if n) < RECALL_POSITIONS:
            yield (
                f"{name} has {_slashed(truths)} ground truths; below {RECALL_POSITIONS} the sampled AP of perfect "
                "detections is below 100, so read the exact AP too"
            )
        if any(truths) and not any(found):
            yield f"no detection of {name} counts" + (" (or all are lower than 25 px)" if entry.scores else "")


def table_of(entries: Sequence[Entry]) -> str:
    """A line for every class, metric and overlap, with the counts behind its numbers."""
    exact = any(score.exact is not None for entry in entries for score in entry.scores or ())
    heads = ["class", "metric", "IoU >", "AP R40", "AP R11", *(["exact AP"] if exact else []), "truths", "detections"]
    rows = [heads]
    for entry in _without_repeats(entries):
        values = [_numbers(entry, "r40"), _numbers(entry, "r11"), *([_numbers(entry, "exact")] if exact else [])]
        counts = [_slashed(entry.ground_truths), _slashed(entry.detections)]
        rows.append([entry.class_name, entry.metric, f"{entry.min_overlap:.2f}", *values, *counts])
    return aligned(rows, left=2)


def openpcdet_lines(entries: Sequence[Entry]) -> str:
    """The text that OpenPCDet's users know; R11 first, then R40, strict then loose. What is not evaluated shows 0."""
    lines = []
    for name in dict.fromkeys(entry.class_name for entry in entries):
        for loose in (False, True):
            mine = {e.metric: e for e in entries if e.class_name == name and e.loose == loose}
            overlaps = ", ".join(f"{e.min_overlap:.2f}" for metric, e in mine.items() if metric != "aos")
            for kind, title in (("r11", "AP"), ("r40", "AP_R40")):
                lines.append(f"{name} {title}@{overlaps}:")
                shown = [mine[m] for m in METRICS if m in mine and not _orientation_is_off(mine[m], entries)]
                lines += [_openpcdet_line(entry, kind) for entry in shown]
    return "\n".join(lines)


def _openpcdet_line(entry: Entry, kind: str) -> str:
    values = [getattr(score, kind) for score in entry.scores] if entry.scores else [0.0] * 3
    return f"{entry.metric:<4} AP:" + ", ".join(f"{v:.4f}" for v in values)


def _orientation_is_off(entry: Entry, entries: Sequence[Entry]) -> bool:
    """Whether this is orientation without alpha: a class is measured in the image, but not how it is turned."""
    image = (e for e in entries if e.class_name == entry.class_name and e.metric == "bbox")
    return entry.metric == "aos" and entry.scores is None and any(e.scores is not None for e in image)


def _without_repeats(entries: Sequence[Entry]) -> list[Entry]:
    """Without the loose entries of the image, which equal the strict ones."""
    return [e for e in entries if not (e.loose and e.metric in ("bbox", "aos"))]


def _numbers(entry: Entry, kind: str) -> str:
    """The aligned numbers of a cell, one a level."""
    counts = entry.ground_truths
    scores: Sequence[Score | None] = entry.scores or (None,) * len(counts)
    values = [getattr(score, kind) if score is not None else None for score in scores]
    cells = [NOT_EVALUATED if v is None or not n else f"{v:.2f}" for v, n in zip(values, counts, strict=True)]
    if kind == "exact":
        cells = ["-" if c == NOT_EVALUATED and n else c for c, n in zip(cells, counts, strict=True)]
    return " ".join(f"{cell:>6}" for cell in cells)


def _slashed(counts: Sequence[int]) -> str:
    return "/".join(map(str, counts))
