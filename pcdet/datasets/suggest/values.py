"""The values of a configuration, from what was measured of the frames."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pcdet.datasets.checks.boxes import all_boxes
from pcdet.datasets.checks.facts import FrameFacts
from pcdet.datasets.checks.model import (
    SPARSE_8X,
    SPARSE_CHANNELS,
    grid_multiple,
    head_stride,
    levels_after_sparse,
)
from pcdet.datasets.doubts import intensity_scale
from pcdet.datasets.suggest.anchors import Anchors, anchors_for

FEWEST = 5  # objects of a class that can be learned from
PASTEABLE = 5  # points of an object that gt_sampling may paste
SPARSE_SIZES = (0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)  # metres
PILLAR_SIZES = (0.16, 0.2, 0.24, 0.32, 0.4, 0.5, 0.64, 0.8)
SPARSE_MAP, PILLAR_MAP = 200, 256  # most cells of the head's map along an axis; KITTI's are 176 x 200 and 216 x 248
SPARSE_LEVELS = 40  # voxels along z where the model does not ask for a number
HEAD_ROOM = 1.5  # of the cap over the fullest scene: pasted objects and fuller scenes than these
LEAST_HEIGHT = 4  # metres
POINT_STEP = 0.1  # metres; where no voxels ask for other ends
BESIDE = 1.0  # metres behind the sensor that the first object's end may reach


class GridValues(NamedTuple):
    """Range and voxels."""

    limits: list[float]
    voxel_size: list[float] | None  # None of a model that takes points
    cells: list[int]
    multiple: int  # of x and y, that the strides ask for
    pillars: bool


class Sampling(NamedTuple):
    """How many objects of a class a scene gets, and from how many they are drawn."""

    name: str
    wanted: int
    usable: int
    mean: float  # in a scene now


class Suggestion(NamedTuple):
    """All that is suggested."""

    frames: int
    classes: dict[str, int]  # class -> objects
    left_out: dict[str, int]
    grid: GridValues
    anchors: list[Anchors]
    sampling: list[Sampling]
    fullest: int  # voxels of the fullest scene
    cap: int
    intensity_top: float | None
    intensity_scale: float


def learned(facts: Sequence[FrameFacts]) -> tuple[dict[str, int], dict[str, int]]:
    """Classes with enough objects, most frequent first, and the others."""
    names, counts = np.unique(all_boxes(facts)[1], return_counts=True)
    pairs = sorted(zip(names.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1])
    return {n: c for n, c in pairs if c >= FEWEST}, {n: c for n, c in pairs if c < FEWEST}


def boxes_of(facts: Sequence[FrameFacts], names: Sequence[str]) -> np.ndarray:
    """(M, 7) boxes of these classes. Raises ``ValueError`` where there is none."""
    boxes, every, _, _ = all_boxes(facts)
    own = boxes[np.isin(every, list(names))]
    if not len(own):
        raise ValueError(
            f"no class has {FEWEST} labelled objects in {len(facts)} frames; look with tools/check_data.py"
        )
    return own


def suggest_grid(boxes: np.ndarray, model: Mapping[str, Any]) -> GridValues:
    """Range that holds the boxes, voxels that keep the head's map small, cells that the strides divide."""
    pillars = (model.get("MAP_TO_BEV") or {}).get("NAME") == "PointPillarScatter"
    multiple, stride = grid_multiple(model), head_stride(model.get("DENSE_HEAD") or {}) or 1
    reach = np.hypot(boxes[:, 3], boxes[:, 4]) / 2
    low = np.quantile(boxes[:, :2] - reach[:, None], 0.005, axis=0)
    high = np.quantile(boxes[:, :2] + reach[:, None], 0.995, axis=0)
    spans = widened([span(*pair) for pair in zip(low, high, strict=True)])
    z_low, z_high = height_span(boxes)
    if "VFE" not in model:
        (x_low, x_high), (y_low, y_high) = (fit_span(a, b, POINT_STEP, 1) for a, b in spans)
        return GridValues([x_low, y_low, float(z_low), x_high, y_high, float(z_high)], None, [], 1, False)
    most = (PILLAR_MAP if pillars else SPARSE_MAP) * stride
    sizes = PILLAR_SIZES if pillars else SPARSE_SIZES
    widest = max(b - a for a, b in spans)
    size = next((s for s in sizes if widest <= s * most), sizes[-1])
    ends = [fit_span(a, b, size, multiple) for a, b in spans]
    levels = 1 if pillars else sparse_levels(model)
    z_size = round((z_high - z_low) / levels, 6)
    limits = [ends[0][0], ends[1][0], float(z_low), ends[0][1], ends[1][1], float(z_high)]
    cells = [round((ends[i][1] - ends[i][0]) / size) for i in (0, 1)]
    return GridValues(limits, [size, size, z_size], [*cells, levels], multiple, pillars)


def span(low: float, high: float) -> tuple[float, float]:
    """From 0 where nothing lies behind, the same to both sides where both are about as far, else as it is."""
    if low > -BESIDE:
        return 0.0, high
    if min(-low, high) > 0.5 * max(-low, high):
        return -max(-low, high), max(-low, high)
    return low, high


def widened(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of which none is shorter than half the longest, about their middles: rotations turn objects out of them."""
    least = max(high - low for low, high in spans) / 2
    return [
        (low, high) if high - low >= least else ((low + high - least) / 2, (low + high + least) / 2)
        for low, high in spans
    ]


def fit_span(low: float, high: float, size: float, multiple: int) -> tuple[float, float]:
    """The span widened to a multiple of ``multiple`` voxels, about its middle or from 0."""
    cells = math.ceil(round((high - low) / size / multiple, 6)) * multiple
    if low == -high:
        return round(-cells * size / 2, 6), round(cells * size / 2, 6)
    start = math.floor(low / size) * size
    cells = math.ceil(round((high - start) / size / multiple, 6)) * multiple
    return round(start, 6), round(start + cells * size, 6)


def height_span(boxes: np.ndarray) -> tuple[int, int]:
    """Whole metres that hold the boxes with half a metre to spare, at least 4."""
    half = boxes[:, 5] / 2
    low = math.floor(np.quantile(boxes[:, 2] - half, 0.005) - 0.5)
    high = math.ceil(np.quantile(boxes[:, 2] + half, 0.995) + 0.5)
    return low, max(high, low + LEAST_HEIGHT)


def sparse_levels(model: Mapping[str, Any]) -> int:
    """Voxels along z that the model's map to the bird's-eye view expects."""
    wanted = (model.get("MAP_TO_BEV") or {}).get("NUM_BEV_FEATURES")
    if (model.get("BACKBONE_3D") or {}).get("NAME") not in SPARSE_8X or wanted is None:
        return SPARSE_LEVELS
    fitting = [n for n in range(8, 200) if levels_after_sparse(n) * SPARSE_CHANNELS == wanted]
    return min(fitting, key=lambda n: abs(n - SPARSE_LEVELS), default=SPARSE_LEVELS)


def suggest_sampling(facts: Sequence[FrameFacts], names: Sequence[str]) -> list[Sampling]:
    """Rare classes are brought to the number of the most frequent one, between 10 and 20, as far as there are objects.

    Only training frames count; of data without splits, all.
    """
    training = [f for f in facts if "train" in f.splits] or list(facts)
    _, every, inside, _ = all_boxes(training)
    means = {name: float((every == name).sum()) / len(training) for name in names}
    wanted = min(max(math.ceil(max(means.values())), 10), 20)
    out = []
    for name in names:
        usable = int(((every == name) & (inside[:, 0] >= PASTEABLE)).sum())
        if usable:
            out.append(Sampling(name, min(wanted, usable), usable, means[name]))
    return out


def suggest_intensity(facts: Sequence[FrameFacts]) -> tuple[float | None, float]:
    """The largest intensity, and the factor that brings it to 1."""
    known = [f.intensity for f in facts if f.intensity is not None]
    if not known:
        return None, 1.0
    low, top = min(low for low, _ in known), max(high for _, high in known)
    scale = intensity_scale(low, top) or 1 / max(top, -low)
    return top, float(f"{scale:.8g}")


def suggest(facts: Sequence[FrameFacts], grid: GridValues, fullest: int, classes: tuple[dict, dict]) -> Suggestion:
    """Everything, from facts, a grid and the voxels of the fullest scene in that grid."""
    wanted, left_out = classes
    boxes, names, _, _ = all_boxes(facts)
    top, scale = suggest_intensity(facts)
    return Suggestion(
        frames=len(facts),
        classes=wanted,
        left_out=left_out,
        grid=grid,
        anchors=[anchors_for(name, boxes[names == name]) for name in wanted],
        sampling=suggest_sampling(facts, list(wanted)),
        fullest=fullest,
        cap=max(math.ceil(fullest * HEAD_ROOM / 1000) * 1000, 2000),
        intensity_top=top,
        intensity_scale=scale,
    )
