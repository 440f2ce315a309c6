"""Detect objects in single point clouds and draw them: no labels, no infos, no display."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import read_config, run

if TYPE_CHECKING:
    from _clouds import DemoScenes

    from pcdet.structures.detections import Detections
    from pcdet.structures.scene import Scene


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """OpenPCDet's options and --out, --score_thresh, --device, --set."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--cfg_file", required=True, help="the model's YAML")
    add("--ckpt", type=Path, required=True, help="its weights")
    add("--data_path", type=Path, required=True, nargs="+", help="clouds, or folders of clouds")
    add("--ext", help="what to look for in a folder, such as .bin (default: every kind of cloud)")
    add("--out", type=Path, default=Path("demo_output"), help="folder for pictures and JSON (default: demo_output)")
    add("--score_thresh", type=float, default=0.3, help="leave out detections below this score")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto takes a GPU where there is one")
    add("--set", dest="set_cfgs", nargs=argparse.REMAINDER, help="KEY VALUE pairs, last on the line")
    parser.set_defaults(batch_size=None, print_config=False)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, and run cloud by cloud."""
    given = parse(arguments)
    config = read_config(given, [])
    from pcdet.models.build import build_model
    from pcdet.train_utils.checkpoint import load_checkpoint
    from pcdet.train_utils.launch import choose_device
    from pcdet.train_utils.weights import load_weights
    from pcdet.utils.logging import setup_logger

    logger = setup_logger()
    device = choose_device(given.device)
    scenes = find_scenes(given, config.settings, logger)
    model = build_model(config.settings.MODEL, scenes.info)
    load_weights(model, load_checkpoint(given.ckpt), given.ckpt)
    model.to(device).eval()
    for index in range(len(scenes)):
        found = detect(model, scenes, index, device, given.score_thresh)
        written = show(scenes, index, found, given.out)
        logger.info("%s: %d objects -> %s", scenes.files[index].name, len(found), ", ".join(map(str, written)))
    return 0


def find_scenes(given: argparse.Namespace, settings: Any, logger: Any) -> "DemoScenes":
    """The clouds of --data_path. Raises ``ValueError`` if the configuration does not describe scenes."""
    from _clouds import DemoScenes

    from pcdet.datasets.clouds import cloud_files

    data = settings.DATA_CONFIG
    if "POINT_CLOUD_RANGE" not in data:
        raise ValueError(f"the demo shows detectors; {data.DATASET} has no scenes. Evaluate with tools/test.py")
    files = [file for path in given.data_path for file in cloud_files(path, given.ext)]
    scenes = DemoScenes(files, data, settings.CLASS_NAMES, logger)
    scenes.fov_points_only = data.get("FOV_POINTS_ONLY", True)
    return scenes


def detect(model: Any, scenes: "DemoScenes", index: int, device: Any, score_thresh: float) -> "Detections":
    """The detections of one cloud, those below the score left out."""
    import torch

    from pcdet.structures.batch import to_device

    with torch.no_grad():
        found = model(to_device(scenes.collate([scenes[index]]), device))[0].to("cpu")
    return found[found.scores >= score_thresh]


def show(scenes: "DemoScenes", index: int, found: "Detections", folder: Path) -> list[Path]:
    """Write the JSON and the pictures of one cloud; the paths of what was written."""
    from _pictures import draw_detections

    from pcdet.utils.files import write_json

    scene = scenes.load_scene(index)
    path = folder / f"{scene.frame_id}.json"
    write_json(path, as_json(scenes, scene, index, found))
    return [path, *draw_detections(scene, found, scenes.class_names, folder, scenes.image_path(index))]


def as_json(scenes: "DemoScenes", scene: "Scene", index: int, found: "Detections") -> dict[str, Any]:
    """Boxes in the LiDAR frame, in metres and radians."""
    rows = zip(found.labels.tolist(), found.scores.tolist(), found.boxes.tolist(), strict=True)
    return {
        "file": str(scenes.files[index]),
        "points": len(scene.points),
        "box_format": "x y z dx dy dz heading: centre and size in metres, radians counter-clockwise from +x",
        "objects": [{"name": scenes.class_names[n - 1], "score": score, "box": box[:7]} for n, score, box in rows],
    }


if __name__ == "__main__":
    run(main)
