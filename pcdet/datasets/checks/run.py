"""All checks of a data set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from pcdet.datasets.checks import boxes, clouds, model
from pcdet.datasets.checks.facts import FrameFacts, Grid, measure
from pcdet.datasets.checks.problem import Level, Problem, some, worst_first
from pcdet.datasets.checks.source import CLOUDS_ALONE, Content, DataSource

VOXELS = "transform_points_to_voxels"


class Checked(NamedTuple):
    """What was measured and what was found."""

    facts: list[FrameFacts]
    problems: list[Problem]  # worst first


def check_data(
    source: DataSource,
    settings: Mapping[str, Any] | None = None,
    *,
    max_frames: int | None = None,
) -> Checked:
    """Every check of a data set.

    ``settings`` is a model's configuration (CLASS_NAMES, DATA_CONFIG, MODEL), or one with DATA_CONFIG alone. Of more
    than ``max_frames`` frames, evenly spaced ones are read.
    """
    settings = settings or {}
    data = settings.get("DATA_CONFIG") or {}
    grid = grid_settings(data)
    chosen = evenly(list(source.frames), max_frames)
    facts, contents = gather(source, chosen, grid, float(data.get("INTENSITY_SCALE", 1.0)))
    problems = file_problems(source, contents) + content_problems(contents)
    problems += data_problems(source, facts)
    if grid is not None:
        problems += settings_problems(facts, settings, grid, len(source.layout.features))
    return Checked(facts, worst_first(problems))


def evenly(frames: Sequence[str], count: int | None) -> list[str]:
    """At most ``count`` of the frames, evenly spaced."""
    if count is None or len(frames) <= count:
        return list(frames)
    return [frames[i] for i in np.linspace(0, len(frames) - 1, count).round().astype(int)]


def grid_settings(data: Mapping[str, Any]) -> Grid | None:
    """The range and voxels of a DATA_CONFIG."""
    if "POINT_CLOUD_RANGE" not in data:
        return None
    block = next((b for b in reversed(data.get("DATA_PROCESSOR") or ()) if "VOXEL_SIZE" in b), {})
    size = block.get("VOXEL_SIZE")
    return Grid(
        np.array(data["POINT_CLOUD_RANGE"], dtype=np.float64),
        None if size is None else np.array(size, dtype=np.float64),
        block.get("MAX_POINTS_PER_VOXEL") if block.get("NAME") == VOXELS else None,
        dict(block.get("MAX_NUMBER_OF_VOXELS") or {}) if block.get("NAME") == VOXELS else {},
    )


def gather(
    source: DataSource, frames: Sequence[str], grid: Grid | None, intensity_scale: float
) -> tuple[list[FrameFacts], dict[str, Content]]:
    """Facts of the frames whose cloud can be read; the content of all, without the points."""
    features = source.layout.features
    column = features.index("intensity") if "intensity" in features else None
    facts: list[FrameFacts] = []
    contents: dict[str, Content] = {}
    for frame in tqdm(frames, "checking", unit="frame", dynamic_ncols=True, disable=None):
        content = source.read(frame)
        contents[frame] = content._replace(points=None)
        if content.points is None:
            continue
        points = content.points
        own = None if content.lacks else column
        if own is not None and intensity_scale != 1.0:
            points[:, own] *= intensity_scale
        facts.append(
            measure(
                frame, source.frames[frame], source.cloud_path(frame), points, content.dropped, content.names,
                content.boxes, intensity_column=own, grid=grid,
            )
        )  # fmt: skip
    return facts, contents


def file_problems(source: DataSource, contents: Mapping[str, Content]) -> list[Problem]:
    """A line for each file or line that cannot be read, and one for each object left out; of equal lines one."""
    out = [Problem(Level.BREAKS, "files", text) for text in source.faults]
    if not contents:
        out.append(Problem(Level.BREAKS, "files", f"{source.root} holds no frame"))
    out += source.oddities
    for level, check, key in ((Level.BREAKS, "files", "faults"), (Level.HARMS, "objects", "left_out")):
        frames: dict[str, list[str]] = {}
        for frame, content in contents.items():
            for text in getattr(content, key):
                frames.setdefault(text, []).append(frame)
        for text, where in frames.items():
            tail = f" ({len(where)} frames)" if len(where) > 1 else ""
            out.append(Problem(level, check, text + tail, len(where) / len(contents), tuple(where)))
    return out


def content_problems(contents: Mapping[str, Content]) -> list[Problem]:
    """What many frames have alike: features that are not there, headings that are no radians, boxes that lean."""
    out = []
    lacking = {frame: c.lacks for frame, c in contents.items() if c.lacks}
    if lacking:
        message = f"{len(lacking)} clouds lack a feature, such as: {next(iter(lacking.values()))}"
        out.append(Problem(Level.HARMS, "features", message, len(lacking) / len(contents), tuple(lacking)))
    total = sum(len(c.names) for c in contents.values())
    for key, check, what in (
        ("wide", "headings", "headings are more than a full turn, are they degrees? set BOX_CONVENTION {unit: deg}"),
        ("tilted", "boxes that lean", "boxes are turned about x or y too and taken as upright"),
    ):
        places = {frame: getattr(c, key) for frame, c in contents.items() if getattr(c, key)}
        count = sum(len(p) for p in places.values())
        if count:
            message = f"{count} of {total} {what}, such as at {next(iter(places.values()))[0]}"
            level = Level.BREAKS if key == "wide" and count > 0.2 * total else Level.HARMS
            out.append(Problem(level, check, message, count / total, tuple(places)))
    return out


def data_problems(source: DataSource, facts: Sequence[FrameFacts]) -> list[Problem]:
    """What is wrong with clouds and boxes, whatever the model."""
    if not facts:
        return []
    paths = [Path(source.cloud_path(f.frame)) for f in facts]
    out = clouds.check_points(facts) + clouds.check_intensity(facts) + clouds.check_duplicates(facts)
    out += clouds.check_columns(facts, paths, len(source.layout.columns))
    out += boxes.check_emptiness(facts)
    out += boxes.check_headings(facts, source.asked_convention) + boxes.check_origin(facts, source.asked_convention)
    out += boxes.check_sizes(facts, source.asked_convention) + clouds.check_ground(facts)
    if source.kind == CLOUDS_ALONE:
        message = "these are clouds alone; to train, a folder has labels and lists of frames too: docs/CUSTOM_DATA.md"
        out.append(Problem(Level.NOTE, "labels", message))
    if source.parse is not None and not any(f.labelled for f in facts):
        out.append(Problem(Level.BREAKS, "labels", "no frame has a usable object"))
    return out


def settings_problems(
    facts: Sequence[FrameFacts], settings: Mapping[str, Any], grid: Grid, features: int
) -> list[Problem]:
    """What does not fit between a configuration and the data."""
    data, network = settings["DATA_CONFIG"], settings.get("MODEL") or {}
    limits = grid.limits.tolist()
    out = []
    if grid.voxel_size is not None:
        out += model.check_grid(limits, grid.voxel_size.tolist(), network)
    if not facts:
        return out
    names = settings.get("CLASS_NAMES")
    out += boxes.check_range(facts, limits, names) + model.check_voxels(facts, grid)
    out += [p for p in clouds.check_ground(facts, limits) if p.level == Level.BREAKS]
    if names is not None:
        out += model.check_classes(facts, names) + model.check_anchors(facts, network)
        out += model.check_sampling(facts, data.get("DATA_AUGMENTOR") or {}, names, features)
    return out


def summary(checked: Checked) -> str:
    """Frames, points and objects in one line."""
    facts = checked.facts
    names = np.concatenate([np.zeros(0, dtype="<U1"), *(f.names for f in facts)])
    counts = ", ".join(f"{n} {(names == n).sum()}" for n in np.unique(names)) or "no objects"
    mean = sum(f.points for f in facts) / max(len(facts), 1)
    splits = sorted({s for f in facts for s in f.splits})
    return f"{len(facts)} frames ({some(splits, 4)}), {mean:.0f} points a frame, {counts}"
