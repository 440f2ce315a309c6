"""Detect objects in single point clouds and draw them: no infos, no display.

Where labels stand beside a cloud in KITTI's layout (velodyne/, label_2/, calib/), hits, misses and false
alarms are told apart.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import add_view_options, run

if TYPE_CHECKING:
    from pcdet.predict import Predictor
    from pcdet.structures.detections import Detections
    from pcdet.structures.outcomes import Outcomes
    from pcdet.structures.scene import Scene
    from pcdet.visual import JudgedScene

MOST_VIEWED = 100  # scenes of --html and --rerun: a browser holds them all at once


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """OpenPCDet's options and --out, --score_thresh, --html, --rerun, --device, --set."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--cfg_file", required=True, help="the model's YAML")
    add("--ckpt", type=Path, required=True, help="its weights")
    add("--data_path", type=Path, required=True, nargs="+", help="clouds, or folders of clouds")
    add("--ext", help="what to look for in a folder, such as .bin (default: every kind of cloud)")
    add("--out", type=Path, default=Path("demo_output"), help="folder for pictures and JSON (default: demo_output)")
    add("--score_thresh", type=float, default=0.3, help="leave out detections below this score")
    add_view_options(parser, f"the clouds (at most {MOST_VIEWED})")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto takes a GPU where there is one")
    add("--set", dest="set_cfgs", nargs=argparse.REMAINDER, help="KEY VALUE pairs, last on the line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, and run cloud by cloud."""
    given = parse(arguments)
    from pcdet.datasets.clouds import cloud_files
    from pcdet.predict import load_model
    from pcdet.utils.logging import setup_logger
    from pcdet.visual import require_rerun

    if given.rerun:
        require_rerun()
    logger = setup_logger()
    predictor = load_model(given.cfg_file, given.ckpt, given.device, given.set_cfgs)
    files = [file for path in given.data_path for file in cloud_files(path, given.ext)]
    viewed = []
    for file in files:
        (scene,) = predictor.scenes([file])
        (found,) = predictor.detect(iter([scene]))
        judged = judge(file, scene, found, predictor, given.score_thresh)
        written = show(file, judged, predictor.class_names, given)
        count = int((found.scores >= given.score_thresh).sum())
        logger.info("%s: %d objects -> %s", file.name, count, ", ".join(map(str, written)))
        if (given.html or given.rerun) and len(viewed) < MOST_VIEWED:
            viewed.append(judged)
    from _pictures import show_scenes

    for line in show_scenes(given, viewed, predictor.class_names):
        logger.info("%s", line)
    if viewed and len(viewed) < len(files):
        logger.warning("--html and --rerun show the first %d of %d clouds", len(viewed), len(files))
    return 0


def judge(file: Path, scene: "Scene", found: "Detections", predictor: "Predictor", score: float) -> "JudgedScene":
    """A cloud with what was found in it, and with its labels and KITTI's verdicts where it has labels."""
    from pcdet.datasets.kitti.camera_clouds import annos_of, image_of
    from pcdet.datasets.kitti.labels import camera_boxes, without_dont_care
    from pcdet.structures.boxes import boxes_from_kitti_camera, wrap_angle
    from pcdet.visual import JudgedScene

    annos = annos_of(file) if scene.calib is not None else None
    if annos is None:
        return JudgedScene(scene.frame_id, scene.points, found, calib=scene.calib, image=image_of(file))
    cared = without_dont_care(annos)
    boxes = boxes_from_kitti_camera(camera_boxes(cared), scene.calib)
    boxes[:, 6] = wrap_angle(boxes[:, 6])
    outcomes = verdicts(annos, scene, found, predictor.class_names, score)
    return JudgedScene(scene.frame_id, scene.points, found, boxes, cared["name"], outcomes, scene.calib, image_of(file))


def verdicts(
    annos: dict[str, Any], scene: "Scene", found: "Detections", class_names: Sequence[str], score: float
) -> dict[float, "Outcomes"]:
    """At every score that a viewer offers: which detections are hits and which labelled objects were found."""
    from pcdet.datasets.kitti.labels import DONT_CARE
    from pcdet.datasets.kitti.results import detections_to_annos
    from pcdet.evaluation.analysis import kitti_objects, outcomes
    from pcdet.evaluation.classes import min_overlaps_of
    from pcdet.structures.outcomes import Outcomes
    from pcdet.visual import SCORES

    boxes, scores = found.boxes.double().numpy(), found.scores.double().numpy()
    results = detections_to_annos(boxes, scores, found.labels.numpy(), class_names, scene.calib, scene.image_shape)
    objects = kitti_objects([annos], [results])
    least = [pair.strict for pair in min_overlaps_of(class_names, None)]
    cared = annos["name"] != DONT_CARE
    by_score = {s: outcomes(objects, class_names, least, s)[0] for s in sorted({*SCORES, score})}
    return {s: Outcomes(o.found, o.truth[cared]) for s, o in by_score.items()}


def show(file: Path, scene: "JudgedScene", class_names: Sequence[str], given: argparse.Namespace) -> list[Path]:
    """Write the JSON and the pictures of one cloud; the paths of what was written."""
    from _pictures import draw_scene

    from pcdet.utils.files import write_json

    path = given.out / f"{scene.name}.json"
    found, _ = scene.above(given.score_thresh)
    write_json(path, as_json(file, scene, found, class_names))
    return [path, *draw_scene(scene, class_names, given.score_thresh, given.out)]


def as_json(file: Path, scene: "JudgedScene", found: "Detections", class_names: Sequence[str]) -> dict[str, Any]:
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
