"""Detect objects in single point clouds and draw them: no labels, no infos, no display."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import run

if TYPE_CHECKING:
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
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, and run cloud by cloud."""
    given = parse(arguments)
    from pcdet.datasets.clouds import cloud_files
    from pcdet.predict import load_model
    from pcdet.utils.logging import setup_logger

    logger = setup_logger()
    predictor = load_model(given.cfg_file, given.ckpt, given.device, given.set_cfgs)
    files = [file for path in given.data_path for file in cloud_files(path, given.ext)]
    for file in files:
        (scene,) = predictor.scenes([file])
        (found,) = predictor.detect(iter([scene]), given.score_thresh)
        written = show(file, scene, found, predictor.class_names, given.out)
        logger.info("%s: %d objects -> %s", file.name, len(found), ", ".join(map(str, written)))
    return 0


def show(file: Path, scene: "Scene", found: "Detections", class_names: Sequence[str], folder: Path) -> list[Path]:
    """Write the JSON and the pictures of one cloud; the paths of what was written."""
    from _pictures import draw_detections

    from pcdet.datasets.kitti.camera_clouds import image_of
    from pcdet.utils.files import write_json

    path = folder / f"{scene.frame_id}.json"
    write_json(path, as_json(file, scene, found, class_names))
    return [path, *draw_detections(scene, found, class_names, folder, image_of(file))]


def as_json(file: Path, scene: "Scene", found: "Detections", class_names: Sequence[str]) -> dict[str, Any]:
    """Boxes in the LiDAR frame, in metres and radians."""
    rows = zip(found.labels.tolist(), found.scores.tolist(), found.boxes.tolist(), strict=True)
    return {
        "file": str(file),
        "points": len(scene.points),
        "box_format": "x y z dx dy dz heading: centre and size in metres, radians counter-clockwise from +x",
        "objects": [{"name": class_names[n - 1], "score": score, "box": box[:7]} for n, score, box in rows],
    }


if __name__ == "__main__":
    run(main)
