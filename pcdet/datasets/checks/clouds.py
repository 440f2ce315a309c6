"""Checks of the clouds: columns, scale of intensity, ground, duplicates and leaks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pcdet.datasets.checks.boxes import all_boxes
from pcdet.datasets.checks.facts import FrameFacts
from pcdet.datasets.checks.problem import Level, Problem, some
from pcdet.datasets.doubts import FAR, intensity_doubt, is_no_scan, is_off_scale

ABSURD = 1e8  # metres that no map has
DECADE = 10.0


def check_points(facts: Sequence[FrameFacts]) -> list[Problem]:
    """Frames without points, with points that are not finite, or with coordinates that no scan has."""
    found = []
    empty = [f.frame for f in facts if f.points == 0]
    if empty:
        message = f"{len(empty)} of {len(facts)} clouds hold no point: {some(empty)}"
        level = Level.BREAKS if len(empty) == len(facts) else Level.HARMS
        found.append(Problem(level, "empty clouds", message, len(empty) / len(facts), tuple(empty)))
    bad = [f.frame for f in facts if f.dropped]
    if bad:
        total = sum(f.dropped for f in facts)
        message = f"{total} points are NaN or infinite and are dropped, in {len(bad)} clouds: {some(bad)}"
        found.append(Problem(Level.NOTE, "points that are not finite", message, len(bad) / len(facts), tuple(bad)))
    far = [f for f in facts if FAR < f.farthest < ABSURD]
    if far:
        most = max(f.farthest for f in far)
        message = (
            f"{len(far)} clouds have coordinates up to {most:.0f} m, such as {far[0].frame}: of a map? float32 keeps "
            f"them to {np.spacing(np.float32(most)):.2g} m; move clouds and boxes to an origin nearby"
        )
        shown = tuple(f.frame for f in far)
        found.append(Problem(Level.HARMS, "coordinates", message, len(far) / len(facts), shown))
    return found


def misread(facts: FrameFacts) -> bool:
    """Is the cloud as tall as it is wide, or larger than the Earth, so that its columns are probably not x y z?"""
    # Coordinates of a map are another problem than columns.
    reach = facts.farthest if facts.farthest >= ABSURD else 0.0
    return facts.points > 0 and is_no_scan(facts.low, facts.high, reach)


def check_columns(facts: Sequence[FrameFacts], paths: Sequence[Path], columns: int) -> list[Problem]:
    """Bare floats read with another number of values a point than they have; ``paths`` are the frames' clouds."""
    odd = [(f, path) for f, path in zip(facts, paths, strict=True) if misread(f)]
    if not odd or len(odd) < 0.5 * len(facts):
        return []
    path = odd[0][1]
    better = [n for n in plausible_columns(path) if n != columns] if path.suffix == ".bin" else []
    spread = ", ".join(f"{v:.3g}" for v in odd[0][0].high - odd[0][0].low)
    message = (
        f"{len(odd)} clouds, such as {path}, spread over {spread} m along x, y, z and reach "
        f"{odd[0][0].farthest:.3g} m: no scan does"
    )
    if better:
        message += (
            f". As {' or '.join(map(str, better))} values a point instead of {columns} they look like one: name as "
            "many in POINT_FEATURE_ENCODING.src_feature_list"
        )
    level = Level.BREAKS if better or odd[0][0].farthest >= ABSURD else Level.NOTE
    return [Problem(level, "columns", message, len(odd) / len(facts), tuple(f.frame for f, _ in odd))]


def plausible_columns(path: Path) -> list[int]:
    """How many float32 a point may have for the file to look like a scan: wide, flat and near."""
    values = np.fromfile(path, dtype=np.float32)
    fitting = []
    for count in range(3, 9):
        if len(values) == 0 or len(values) % count:
            continue
        xyz = values.reshape(-1, count)[:, :3]
        if not np.isfinite(xyz).all() or np.abs(xyz).max() > FAR:
            continue
        extent = np.subtract(*np.quantile(xyz, (0.95, 0.05), axis=0))
        if 0 < extent[2] < 0.5 * extent[:2].max() and extent[:2].min() > extent[2]:
            fitting.append(count)
    return fitting


def check_intensity(facts: Sequence[FrameFacts]) -> list[Problem]:
    """Intensity that is not in [0, 1], was not recorded, or has two scales; after INTENSITY_SCALE."""
    known = [f for f in facts if f.intensity is not None]
    if not known:
        return []
    high = np.array([f.intensity[1] for f in known])
    low = np.array([f.intensity[0] for f in known])
    constant = high == low
    found = []
    if constant.any():
        shown = [f.frame for f, same in zip(known, constant, strict=True) if same]
        message = f"intensity is the same in all points of {len(shown)} clouds ({some(shown)}): was it not recorded?"
        level = Level.HARMS if not constant.all() else Level.NOTE
        found.append(Problem(level, "intensity", message, constant.mean(), tuple(shown)))
    large = np.array([is_off_scale(*f.intensity) for f in known])
    if large.any():
        shown = tuple(f.frame for f, big in zip(known, large, strict=True) if big)
        top = high[large].max()
        message = intensity_doubt(low.min(), top)
        small = ~large & ~constant & (high * DECADE < top)
        if small.any():
            other = next(f.frame for f, is_small in zip(known, small, strict=True) if is_small)
            message = (
                f"intensity has two scales: up to {top:g} in {some(shown)}, up to {high[small].max():g} in {other} and "
                f"{small.sum() - 1} more; bring them to one"
            )
        found.append(Problem(Level.HARMS, "intensity", message, large.mean(), shown))
    return found


def check_ground(facts: Sequence[FrameFacts], limits: Sequence[float] | None = None) -> list[Problem]:
    """The ground outside the range, at another height in some frames, or boxes that float or sink."""
    known = [f for f in facts if np.isfinite(f.ground)]
    if not known:
        return []
    heights = np.array([f.ground for f in known])
    middle, found = float(np.median(heights)), []
    if limits is not None and not limits[2] <= middle <= limits[5]:
        message = f"the ground lies at z = {middle:.2f} m, outside POINT_CLOUD_RANGE's {limits[2]:g} to {limits[5]:g}"
        found.append(Problem(Level.BREAKS, "ground", message))
    odd = np.abs(heights - middle) > 1.0
    if odd.mean() > 0.05:
        shown = tuple(f.frame for f, is_odd in zip(known, odd, strict=True) if is_odd)
        message = (
            f"the ground lies more than 1 m from z = {middle:.2f} m in {odd.sum()} frames ({some(shown)}): several "
            "mounting heights?"
        )
        found.append(Problem(Level.NOTE, "ground", message, odd.mean(), shown))
    boxes, _, _, frames = all_boxes(known)
    if len(boxes) >= 3:
        ground = np.repeat(heights, [len(f.names) for f in known])
        gap = float(np.median(boxes[:, 2] - boxes[:, 5] / 2 - ground))
        if abs(gap) > 0.5:
            word = "above" if gap > 0 else "below"
            message = f"half of the boxes end {abs(gap):.2f} m or more {word} the ground at z = {middle:.2f} m"
            found.append(Problem(Level.HARMS, "ground", message, 1.0, tuple(dict.fromkeys(frames.tolist()))))
    return found


def check_duplicates(facts: Sequence[FrameFacts]) -> list[Problem]:
    """Clouds that are byte for byte the same, and frames or clouds in training and validation at once."""
    by_digest: dict[str, list[FrameFacts]] = {}
    for f in facts:
        if f.digest:
            by_digest.setdefault(f.digest, []).append(f)
    found = []
    same = [group for group in by_digest.values() if len(group) > 1]
    if same:
        pairs = [" = ".join(f.frame for f in group) for group in same]
        extra = sum(len(g) - 1 for g in same)
        shown = tuple(g[0].frame for g in same)
        found.append(
            Problem(Level.NOTE, "duplicates", f"{extra} clouds repeat others: {some(pairs)}", extra / len(facts), shown)
        )
    leaks = []
    for group in by_digest.values():
        splits = {s for f in group for s in f.splits}
        if "train" in splits and splits & {"val", "test"}:
            leaks.append(group[0].frame)
    held_out = sum(bool({"val", "test"} & set(f.splits)) for f in facts)
    if leaks:
        message = f"{len(leaks)} clouds are in 'train' and in 'val' or 'test' ({some(leaks)}): results say little there"
        found.append(Problem(Level.HARMS, "leaks", message, min(len(leaks) / max(held_out, 1), 1.0), tuple(leaks)))
    return found
