"""Write a model's configuration for a folder of labelled data, with the reason for each value."""

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import ROOT, positive, run

if TYPE_CHECKING:
    from pcdet.datasets.checks import DataSource

FOLDERS = {"KITTI": "kitti_models", "custom": "custom_models"}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data_path", type=Path, required=True, help="folder of KITTI's or the custom layout, with labels")
    add(
        "--model",
        default="pv_rcnn",
        help="a YAML's name in cfgs/custom_models, or cfgs/kitti_models for KITTI's layout",
    )
    add("--data_cfg", type=Path, help="YAML that says how the files are read: LABEL_FORMAT, BOX_CONVENTION, ...")
    add("--max_frames", type=positive, default=200, help="read at most so many frames, evenly spaced (default: 200)")
    add("--out", type=Path, help="the YAML to write (default: <model>_<folder>.yaml)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, suggest, write."""
    given = parse(arguments)
    from pcdet.config import load_data_settings
    from pcdet.datasets.checks import Level, check_data, find_source
    from pcdet.datasets.dataset import find_data_path
    from pcdet.datasets.suggest import suggest, yaml_text
    from pcdet.datasets.suggest.values import boxes_of, learned, suggest_grid
    from pcdet.utils.files import write_text

    reading = None if given.data_cfg is None else load_data_settings(given.data_cfg)
    source = find_source(find_data_path(given.data_path), reading)
    base, settings = base_config(source, given.model)
    is_kitti = source.kind == "KITTI"
    if is_kitti and reading is None:
        source = find_source(source.root, settings.DATA_CONFIG)  # cropped to the camera's view, as in training
    facts, problems = check_data(source, max_frames=given.max_frames)
    for problem in problems:
        if problem.level == Level.BREAKS:
            print(f"BREAKS  {problem.check}: {problem.message}")
    classes = learned(facts)
    grid = suggest_grid(boxes_of(facts, list(classes[0])), settings.MODEL)
    facts, fullest = fill_grid(source, settings, grid, given.max_frames)
    suggestion = suggest(facts, grid, fullest, classes)
    out = given.out or Path(f"{given.model}_{source.root.name}.yaml")
    data = data_lines(source, settings, given.data_cfg, out)
    if not is_kitti and any(f.intensity is None for f in facts) and "intensity" in source.layout.features:
        data["POINT_FEATURE_ENCODING"] = {"missing_values": {"intensity": 0.0}}
    write_text(out, yaml_text(suggestion, base, data, settings.MODEL, own_metric=not is_kitti))
    print(
        f"{out}: {', '.join(suggestion.classes)}; next: python tools/check_data.py --cfg_file {shlex.quote(str(out))}"
    )
    return 0


def base_config(source: "DataSource", model: str) -> tuple[str, Any]:
    """The YAML to stand on, relative to the repository's root, and its settings."""
    from pcdet.config import load_config

    folder = FOLDERS.get(source.kind.partition(",")[0])
    if folder is None:
        raise ValueError(f"{source.root} holds clouds without labels: a folder 'points' with 'labels' is needed")
    path = f"cfgs/{folder}/{model}.yaml"
    if not (ROOT / path).is_file():
        known = ", ".join(sorted(p.stem for p in (ROOT / "cfgs" / folder).glob("*.yaml")))
        raise ValueError(f"--model {model}: {path} does not exist; there are {known}")
    return path, load_config(path).settings


def fill_grid(source: "DataSource", settings: Any, grid: Any, max_frames: int) -> tuple[list, int]:
    """The frames measured once more, in the suggested grid; the voxels of the fullest."""
    from pcdet.datasets.checks import check_data
    from pcdet.datasets.suggest.yaml_text import with_voxels

    processors = with_voxels(settings.DATA_CONFIG.DATA_PROCESSOR, grid.voxel_size)
    data = {"POINT_CLOUD_RANGE": grid.limits, "DATA_PROCESSOR": processors}
    facts, _ = check_data(source, {"DATA_CONFIG": data}, max_frames=max_frames)
    return facts, max((f.voxels or 0 for f in facts), default=0)


def data_lines(source: "DataSource", settings: Any, reading: Path | None, out: Path) -> dict[str, Any]:
    """What DATA_CONFIG says beside numbers; ``reading``: the YAML that says how the files are read."""
    lines: dict[str, Any] = {"DATA_PATH": str(source.root)}
    if reading is not None:
        lines = {"_BASE_CONFIG_": os.path.relpath(reading, out.resolve().parent), **lines}
    elif source.label_format is not None:
        lines["LABEL_FORMAT"] = source.label_format
        if source.box_convention:
            lines["BOX_CONVENTION"] = dict(source.box_convention)
    base = settings.DATA_CONFIG
    return lines | json.loads(json.dumps({k: base[k] for k in ("DATA_PROCESSOR", "DATA_AUGMENTOR")}))


if __name__ == "__main__":
    run(main)
