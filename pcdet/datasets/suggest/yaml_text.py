"""The YAML of a suggestion, each value with its reason above it."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pcdet.datasets.suggest.anchors import LONG
from pcdet.datasets.suggest.values import FEWEST, HEAD_ROOM, PASTEABLE, Suggestion

WIDTH = 116


def yaml_text(
    suggestion: Suggestion, base: str, data: Mapping[str, Any], model: Mapping[str, Any], *, own_metric: bool = True
) -> str:
    """A model's YAML that stands on the YAML ``base``.

    ``data`` are lines of DATA_CONFIG that come with the folder (DATA_PATH, how labels are read) and the base's
    DATA_PROCESSOR and DATA_AUGMENTOR, which are taken over with other numbers; ``model`` is the base's MODEL, of which
    the values that depend on the data are written. ``own_metric``: the data set has EVALUATION.
    """
    own = {k: v for k, v in data.items() if k not in ("DATA_PROCESSOR", "DATA_AUGMENTOR")}
    parts = [
        part({"_BASE_CONFIG_": base}, f"Suggested from {suggestion.frames} frames; change what you know better."),
        part({"CLASS_NAMES": list(suggestion.classes)}, why_classes(suggestion)),
        "DATA_CONFIG:\n",
        part(own, indent=2),
        part({"POINT_CLOUD_RANGE": suggestion.grid.limits}, why_range(suggestion), 2),
    ]
    if suggestion.intensity_scale != 1.0:
        why = f"Intensities reach {suggestion.intensity_top:g}; models expect 0 to 1."
        parts.append(part({"INTENSITY_SCALE": suggestion.intensity_scale}, why, 2))
    if own_metric:
        overlaps = {a.name: [0.7, 0.5] if a.sizes[:, 0].max() > LONG else [0.5, 0.25] for a in suggestion.anchors}
        why = f"Overlaps of a hit (strict, loose): KITTI's of cars for classes over {LONG} m, of cyclists for others."
        parts.append(part({"EVALUATION": {"MIN_OVERLAPS": overlaps}}, why, 2))
    processor = with_voxels(data["DATA_PROCESSOR"], suggestion.grid.voxel_size, suggestion.cap)
    parts.append(part({"DATA_PROCESSOR": processor}, why_voxels(suggestion), 2))
    augmentor = augmentation(suggestion, data["DATA_AUGMENTOR"])
    parts.append(part({"DATA_AUGMENTOR": augmentor}, why_sampling(suggestion), 2))
    return "".join([*parts, "MODEL:\n", *dense_head(suggestion, model), *point_head(suggestion, model)])


def dense_head(s: Suggestion, model: Mapping[str, Any]) -> list[str]:
    """What DENSE_HEAD says of classes, sizes and range: of anchors, or of a head for centres."""
    head, own = model.get("DENSE_HEAD") or {}, []
    if "ANCHOR_GENERATOR_CONFIG" in head:
        own.append(part({"ANCHOR_GENERATOR_CONFIG": blocks(s, head)}, why_sizes(s), 4))
    if "RPN_HEAD_CFGS" in head:
        heads = [{"HEAD_CLS_NAME": [name]} for name in s.classes]
        own.append(part({"RPN_HEAD_CFGS": heads}, "A head for each class.", 4))
    if "CLASS_NAMES_EACH_HEAD" in head:
        own.append(part({"CLASS_NAMES_EACH_HEAD": [list(s.classes)]}, "One head for all classes.", 4))
    if "POST_CENTER_LIMIT_RANGE" in (head.get("POST_PROCESSING") or {}):
        limits = {"POST_PROCESSING": {"POST_CENTER_LIMIT_RANGE": s.grid.limits}}
        own.append(part(limits, "Detections are wanted in POINT_CLOUD_RANGE.", 4))
    return ["  DENSE_HEAD:\n", *own] if own else []


def point_head(s: Suggestion, model: Mapping[str, Any]) -> list[str]:
    """The mean sizes that a POINT_HEAD with boxes counts from, one a class."""
    coder = ((model.get("POINT_HEAD") or {}).get("TARGET_CONFIG") or {}).get("BOX_CODER_CONFIG") or {}
    if "mean_size" not in coder:
        return []
    sizes = {"BOX_CODER_CONFIG": {"mean_size": [a.mean.tolist() for a in s.anchors]}}
    rows = [f"{a.name}: mean size of {a.boxes} boxes." for a in s.anchors]
    return ["  POINT_HEAD:\n    TARGET_CONFIG:\n", part(sizes, "\n".join(rows), 6)]


def part(content: Mapping[str, Any], why: str = "", indent: int = 0) -> str:
    """Some keys, below a comment."""
    if not content:
        return ""
    lines = [f"# {line}\n" for text in why.splitlines() for line in textwrap.wrap(text, WIDTH - indent)]
    return textwrap.indent("".join([*lines, *(dump(k, v, WIDTH - indent) for k, v in content.items())]), " " * indent)


def dump(key: str, value: Any, width: int) -> str:
    """A key and its value, the innermost lists and mappings in one line each."""
    style = None if isinstance(value, (list, dict)) else False
    # A list that stands in two places would become an anchor and an alias: copies are written out.
    copied = json.loads(json.dumps({key: value}))
    return yaml.safe_dump(copied, sort_keys=False, default_flow_style=style, width=width)


def listing(counts: Mapping[str, int]) -> str:
    """``Car 3, Van 2``"""
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def why_classes(s: Suggestion) -> str:
    text = f"Objects: {listing(s.classes)}."
    return text + (f" Left out with fewer than {FEWEST}: {listing(s.left_out)}." if s.left_out else "")


def why_range(s: Suggestion) -> str:
    text = (
        "Holds 99 of 100 labelled boxes with their lengths (x, y), and half a metre below and above them (z); one "
        "side is at least half as long as the other, since objects are turned in training."
    )
    if s.grid.voxel_size is None:
        return text
    x, y, z = s.grid.cells
    return (
        f"{text} {x} x {y} x {z} voxels: the model's strides need multiples of {s.grid.multiple} along x and y, its "
        f"map from above {z} along z."
    )


def why_voxels(s: Suggestion) -> str:
    if s.grid.voxel_size is None:
        return "The model takes points, not voxels."
    size = s.grid.voxel_size[0]
    return (
        f"VOXEL_SIZE: {size:g} m is the finest whose map in the head stays as small as those of KITTI.\n"
        f"MAX_NUMBER_OF_VOXELS: the fullest of the frames fills {s.fullest}; {HEAD_ROOM:g} times that leaves room for "
        "pasted objects."
    )


def why_sampling(s: Suggestion) -> str:
    rows = [
        f"{row.name} up to {row.wanted} a scene ({row.mean:.1f} now), drawn from {row.usable}" for row in s.sampling
    ]
    if not rows:
        return f"No object has the {PASTEABLE} points to be pasted."
    return f"SAMPLE_GROUPS: {'; '.join(rows)} with {PASTEABLE} points or more."


def why_sizes(s: Suggestion) -> str:
    rows = [
        f"{a.name}: {len(a.sizes)} size{'s' if len(a.sizes) > 1 else ''} by clustering {a.boxes} boxes, mean overlap "
        f"from above {a.overlap:.2f}; they stand at z = {a.bottom:g}"
        for a in s.anchors
    ]
    return "\n".join(rows)


def with_voxels(
    base: Sequence[Mapping[str, Any]], voxel_size: Sequence[float] | None, cap: int | None = None
) -> list[dict[str, Any]]:
    """A DATA_PROCESSOR with other voxels and, where ``cap`` is given, another MAX_NUMBER_OF_VOXELS."""
    out = []
    for block in base:
        new = dict(block)
        if voxel_size is not None and "VOXEL_SIZE" in new:
            new["VOXEL_SIZE"] = list(voxel_size)
        if cap is not None and "MAX_NUMBER_OF_VOXELS" in new:
            new["MAX_NUMBER_OF_VOXELS"] = {"train": cap, "test": cap}
        out.append(new)
    return out


def augmentation(s: Suggestion, base: Mapping[str, Any]) -> dict[str, Any]:
    """The base's DATA_AUGMENTOR with the suggested groups; without gt_sampling where there is nothing to paste."""
    out = []
    for block in base["AUG_CONFIG_LIST"]:
        if block["NAME"] != "gt_sampling":
            out.append(dict(block))
        elif s.sampling:
            prepare = {**block["PREPARE"], "filter_by_min_points": [f"{r.name}:{PASTEABLE}" for r in s.sampling]}
            groups = [f"{r.name}:{r.wanted}" for r in s.sampling]
            out.append({**block, "PREPARE": prepare, "SAMPLE_GROUPS": groups})
    return {**base, "AUG_CONFIG_LIST": out}


def blocks(s: Suggestion, head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """ANCHOR_GENERATOR_CONFIG: what is not of a class's sizes is the base's."""
    first = head["ANCHOR_GENERATOR_CONFIG"][0]
    return [
        {
            **first,
            "class_name": a.name,
            "anchor_sizes": a.sizes.tolist(),
            "anchor_bottom_heights": [a.bottom],
            "matched_threshold": a.thresholds[0],
            "unmatched_threshold": a.thresholds[1],
        }
        for a in s.anchors
    ]
