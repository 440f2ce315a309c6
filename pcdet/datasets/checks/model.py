"""Checks of a configuration against the data: classes, grid and strides, anchors, caps, sampling."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pcdet.datasets.checks.boxes import all_boxes
from pcdet.datasets.checks.facts import FrameFacts, Grid
from pcdet.datasets.checks.problem import Level, Problem, some
from pcdet.datasets.process.voxels import grid_of

# Sparse backbones that reduce z 8 times and then once more without padding, to 128 channels a level.
SPARSE_8X = ("VoxelBackBone8x", "VoxelResBackBone8x", "UNetV2")
SPARSE_CHANNELS = 128
TOLERATED_LOSS = 0.05  # share of voxels beyond the cap that is worth a note only


def check_classes(facts: Sequence[FrameFacts], class_names: Sequence[str]) -> list[Problem]:
    """Classes without objects, and labelled classes that are not learned."""
    found, counts = np.unique(all_boxes(facts)[1], return_counts=True)
    labelled = dict(zip(found.tolist(), counts.tolist(), strict=True))
    total = sum(labelled.values())
    if not total:
        return []
    listing = ", ".join(f"{n} {c}" for n, c in labelled.items())
    if not set(labelled) & set(class_names):
        message = f"0 usable objects: CLASS_NAMES is {list(class_names)}, labelled are {listing}"
        return [Problem(Level.BREAKS, "classes", message)]
    problems = []
    for name in class_names:
        if name in labelled:
            continue
        near = difflib.get_close_matches(name.lower(), [n.lower() for n in labelled], n=1, cutoff=0.8)
        hint = f"; is '{near[0]}' meant? CLASS_MAP renames classes" if near else ""
        message = f"no object is labelled {name}, which CLASS_NAMES asks for (labelled are {listing}){hint}"
        problems.append(Problem(Level.HARMS, "classes", message, 1 / len(class_names)))
    others = {n: c for n, c in labelled.items() if n not in class_names}
    if others:
        message = "labelled classes that are not learned: " + ", ".join(f"{n} {c}" for n, c in others.items())
        problems.append(Problem(Level.NOTE, "classes", message, sum(others.values()) / total))
    return problems


def grid_multiple(model: Mapping[str, Any]) -> int:
    """The number of cells that the strides of a MODEL divide: x and y of the grid must be a multiple of it."""
    backbone, stride = model.get("BACKBONE_2D") or {}, head_stride(model.get("DENSE_HEAD") or {})
    strides = backbone.get("LAYER_STRIDES") or [1]
    if stride is None:
        return 1
    ups = backbone.get("UPSAMPLE_STRIDES") or [1]
    out = math.prod(strides[:1]) / ups[0]  # all levels are brought to one resolution
    return max(round(stride / out * math.prod(strides)), 1)


def head_stride(head: Mapping[str, Any]) -> int | None:
    """The stride of a dense head's map."""
    for block in head.get("ANCHOR_GENERATOR_CONFIG") or ():
        return int(block["feature_map_stride"])
    target = head.get("TARGET_ASSIGNER_CONFIG") or {}
    return int(target["FEATURE_MAP_STRIDE"]) if "FEATURE_MAP_STRIDE" in target else None


def levels_after_sparse(cells: int) -> int:
    """Levels along z that the 8x sparse backbones leave of ``cells`` (one is added to begin with)."""
    size = cells + 1
    for padding in (1, 1, 0):
        size = (size + 2 * padding - 3) // 2 + 1
    return (size - 3) // 2 + 1


def check_grid(limits: Sequence[float], voxel_size: Sequence[float], model: Mapping[str, Any]) -> list[Problem]:
    """Range against voxel size and strides, with the nearest values that fit."""
    try:
        cells = grid_of(np.array(limits, dtype=np.float32), voxel_size)
    except ValueError as error:
        return [Problem(Level.BREAKS, "grid", str(error))]
    multiple, found = grid_multiple(model), []
    for axis in (0, 1):
        if cells[axis] % multiple:
            found.append(_not_a_multiple("xy"[axis], limits[axis], voxel_size[axis], cells[axis], multiple))
    problem = _height_problem(cells[2], limits, voxel_size, model)
    return [*found, *([problem] if problem else [])]


def _not_a_multiple(axis: str, low: float, size: float, cells: int, multiple: int) -> Problem:
    down = cells - cells % multiple
    ends = " or ".join(f"{low + n * size:.6g}" for n in (down, down + multiple) if n)
    message = (
        f"POINT_CLOUD_RANGE has {cells} voxels along {axis}, the model's strides need a multiple of {multiple}: from "
        f"{low:g} it may end at {ends}"
    )
    return Problem(Level.BREAKS, "grid", message)


def _height_problem(
    cells: int, limits: Sequence[float], voxel_size: Sequence[float], model: Mapping[str, Any]
) -> Problem | None:
    backbone = (model.get("BACKBONE_3D") or {}).get("NAME")
    to_bev = model.get("MAP_TO_BEV") or {}
    low, size = limits[2], voxel_size[2]
    if to_bev.get("NAME") == "PointPillarScatter" and cells != 1:
        message = f"pillars are one voxel high, the range has {cells}: set VOXEL_SIZE's z to {limits[5] - low:g}"
        return Problem(Level.BREAKS, "grid", message)
    wanted = to_bev.get("NUM_BEV_FEATURES")
    if backbone not in SPARSE_8X or to_bev.get("NAME") != "HeightCompression" or wanted is None:
        return None
    levels = levels_after_sparse(cells)
    if levels * SPARSE_CHANNELS == wanted:
        return None
    fitting = [n for n in range(8, 200) if levels_after_sparse(n) * SPARSE_CHANNELS == wanted]
    near = min(fitting, key=lambda n: abs(n - cells), default=None)
    message = (
        f"{cells} voxels along z become {max(levels, 0)} levels of {SPARSE_CHANNELS} channels, MAP_TO_BEV."
        f"NUM_BEV_FEATURES is {wanted}"
    )
    if near is not None:
        message += f": with {near} voxels it fits, so end the range at z = {low + near * size:.6g}"
    return Problem(Level.BREAKS, "grid", message)


def anchors_of(head: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray, float, Mapping[str, Any]]]:
    """Class, sizes (A, 3), bottom height and block of each anchor generator."""
    for block in head.get("ANCHOR_GENERATOR_CONFIG") or ():
        yield block["class_name"], np.array(block["anchor_sizes"]), float(block["anchor_bottom_heights"][0]), block


def best_anchor_overlaps(boxes: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(M, 7) boxes, (A, 3) sizes -> (M,) largest overlap from above of a box with an anchor at its own place."""
    common = np.minimum(boxes[:, None, 3:5], anchors[None, :, :2]).prod(axis=2)
    union = boxes[:, None, 3:5].prod(axis=2) + anchors[None, :, :2].prod(axis=2) - common
    return (common / union).max(axis=1)


def check_anchors(facts: Sequence[FrameFacts], model: Mapping[str, Any]) -> list[Problem]:
    """Anchors against the sizes and the heights of the labelled boxes."""
    boxes, names, _, _ = all_boxes(facts)
    found = []
    for name, sizes, bottom, block in anchors_of(model.get("DENSE_HEAD") or {}):
        own = boxes[names == name]
        if not len(own):
            continue
        median = np.median(own, axis=0)
        bad = best_anchor_overlaps(own, sizes) < block["unmatched_threshold"]
        if bad.mean() > 0.3:
            message = (
                f"{bad.mean():.0%} of {len(own)} {name} overlap anchor_sizes {sizes.tolist()} less than "
                f"unmatched_threshold {block['unmatched_threshold']} even at the best place; the median size is "
                f"{median[3:6].round(2).tolist()}"
            )
            found.append(Problem(Level.HARMS, "anchors", message, float(bad.mean())))
        gap = bottom - (median[2] - median[5] / 2)
        if abs(gap) > sizes[:, 2].max():
            message = (
                f"anchor_bottom_heights of {name} is {bottom:g}, the boxes stand at {median[2] - median[5] / 2:.2f}: "
                f"{abs(gap):.2f} m apart"
            )
            found.append(Problem(Level.HARMS, "anchors", message))
    return found


def check_voxels(facts: Sequence[FrameFacts], grid: Grid) -> list[Problem]:
    """Occupied voxels against MAX_NUMBER_OF_VOXELS, points against MAX_POINTS_PER_VOXEL, points in range."""
    found = []
    counts = np.array([f.voxels for f in facts if f.voxels is not None])
    for mode, cap in grid.max_voxels.items():
        over = counts > cap
        if over.any():
            lost = float((np.maximum(counts - cap, 0) / np.maximum(counts, 1)).mean())
            message = (
                f"{over.mean():.0%} of the clouds fill more than MAX_NUMBER_OF_VOXELS.{mode} {cap} voxels, up to "
                f"{counts.max()}: {lost:.1%} of all are dropped"
            )
            level = Level.HARMS if lost > TOLERATED_LOSS else Level.NOTE
            found.append(Problem(level, "voxels", message, over.mean()))
    crowded = np.array([f.crowded for f in facts if f.voxels])
    if len(crowded) and crowded.mean() > 0.2:
        message = f"MAX_POINTS_PER_VOXEL {grid.max_points} drops {crowded.mean():.0%} of the points"
        found.append(Problem(Level.NOTE, "voxels", message, crowded.mean()))
    inside = np.array([f.in_range for f in facts if f.points])
    if len(inside) and inside.mean() < 0.3:
        level = Level.BREAKS if inside.max() == 0 else Level.NOTE
        message = f"{1 - inside.mean():.0%} of the points lie outside POINT_CLOUD_RANGE {grid.limits.tolist()}"
        found.append(Problem(level, "range", message, 1 - inside.mean()))
    return found


def check_sampling(
    facts: Sequence[FrameFacts], augmentor: Mapping[str, Any], class_names: Sequence[str], features: int
) -> list[Problem]:
    """gt_sampling: its classes, its number of features, and whether there are objects to paste."""
    disabled = augmentor.get("DISABLE_AUG_LIST") or ()
    blocks = [b for b in augmentor.get("AUG_CONFIG_LIST") or () if b.get("NAME") == "gt_sampling"]
    if not blocks or "gt_sampling" in disabled:
        return []
    block, found = blocks[0], []
    if int(block.get("NUM_POINT_FEATURES", features)) != features:
        message = f"gt_sampling has NUM_POINT_FEATURES {block['NUM_POINT_FEATURES']}, src_feature_list {features} names"
        found.append(Problem(Level.BREAKS, "sampling", message))
    _, names, inside, _ = all_boxes([f for f in facts if "train" in f.splits])
    poor = []
    for group in block.get("SAMPLE_GROUPS") or ():
        name = str(group).partition(":")[0]
        if name not in class_names:
            message = f"SAMPLE_GROUPS names {name}, CLASS_NAMES has {list(class_names)}"
            found.append(Problem(Level.HARMS, "sampling", message))
        elif len(names) and not ((names == name) & (inside[:, 0] >= 5)).any():
            poor.append(name)
    if poor:
        message = f"no object with 5 points or more to paste in 'train': {some(poor)}"
        found.append(Problem(Level.HARMS, "sampling", message, len(poor) / len(block["SAMPLE_GROUPS"])))
    return found
