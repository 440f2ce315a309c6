"""Seconds that KITTI's metric takes for as many frames as KITTI's validation split has, beside a plain way.

    python benchmarks/kitti_eval.py [--frames 3769] [--plain 60] [--json OUT]

The frames are generated from a fixed seed: cars, pedestrians and cyclists; of the detections some are displaced, some
missing, some false. The time is that of the whole table: three classes, four metrics, strict and loose overlaps.

The plain way does the same by loops over frames, objects and thresholds in Python, with clipped polygons in NumPy. It
runs over the first ``--plain`` frames, must find the same numbers there, and its time is scaled to all frames.
"""

import argparse
import platform
import resource
import time
from typing import Any

import numpy as np
import torch
from kitti_eval_plain import average_precision

from pcdet.evaluation.kitti import average_precisions
from pcdet.utils.files import write_json

CLASSES = ("Car", "Pedestrian", "Cyclist")
SIZES = np.array([[3.9, 1.56, 1.6], [0.8, 1.73, 0.6], [1.76, 1.73, 0.6]])  # length, height, width
TRUTHS, FALSE, FOUND = 8.5, 2.3, 0.85  # objects and false alarms a frame; the part of the objects that is found
FOCAL, CENTRE = 721.5, (609.6, 172.9)  # pixels

Annos = dict[str, Any]


def annos(kinds: np.ndarray, places: np.ndarray, rotation: np.ndarray, rng: np.random.Generator) -> Annos:
    """A frame of objects of the given classes (M,), bottom centres (M, 3) and rotations (M,), with random scores."""
    count, depth, sizes = len(kinds), places[:, 2], SIZES[kinds]
    across, bottom = (FOCAL * places[:, i] / depth + CENTRE[i] for i in range(2))
    width, height = FOCAL * sizes[:, 0] / depth, FOCAL * sizes[:, 1] / depth
    return {
        "name": np.array(CLASSES)[kinds],
        "truncated": np.zeros(count),
        "occluded": rng.integers(0, 4, count),
        "alpha": rotation - np.arctan2(places[:, 0], depth),
        "bbox": np.stack([across - width / 2, bottom - height, across + width / 2, bottom], axis=1),
        "dimensions": sizes,
        "location": places,
        "rotation_y": rotation,
        "score": rng.random(count),
    }


def make_frames(count: int) -> tuple[list[Annos], list[Annos]]:
    """Ground truths and detections of ``count`` frames."""
    rng = np.random.default_rng(0)
    truths, founds = [], []
    for _ in range(count):
        true, false = rng.poisson(TRUTHS), rng.poisson(FALSE)
        kinds = rng.choice(3, true + false, p=(0.7, 0.2, 0.1))
        places = rng.uniform((-20, 1.6, 5), (20, 1.7, 60), (true + false, 3))
        rotation = rng.uniform(-np.pi, np.pi, true + false)
        truths.append(annos(kinds[:true], places[:true], rotation[:true], rng))
        kept = np.concatenate([rng.random(true) < FOUND, np.ones(false, dtype=bool)])
        moved, turned = places + rng.normal(0, 0.1, places.shape), rotation + rng.normal(0, 0.05, len(rotation))
        founds.append(annos(kinds[kept], moved[kept], turned[kept], rng))
    return truths, founds


def measure(truths: list[Annos], founds: list[Annos], repeats: int) -> dict[str, float]:
    """Seconds of the first call, which compiles or reads the cache, and of the fastest of ``repeats`` later ones."""
    times, cpu = [], []
    for _ in range(repeats + 1):
        start, used = time.perf_counter(), time.process_time()
        average_precisions(truths, founds, CLASSES)
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "first_seconds": times[0],
        "seconds": min(times[1:]),
        "cpu_seconds": min(cpu[1:]),
        "process_peak_mib": peak,
    }


def compare(truths: list[Annos], founds: list[Annos], frames: int) -> float:
    """Seconds that the plain way takes for a frame. Raises ``ValueError`` if it finds another number."""
    some = truths[:frames], founds[:frames]
    entries = average_precisions(*some, CLASSES)
    start = time.perf_counter()
    for entry in entries:
        plain = average_precision(*some, entry.class_name, entry.metric, entry.min_overlap)
        ours = [score.r40 for score in entry.scores]
        if not np.allclose(plain, ours, rtol=0, atol=1e-6):
            raise ValueError(f"{entry.class_name} {entry.metric} is {ours}, but {plain} the plain way")
    return (time.perf_counter() - start) / frames


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=3769, help="frames to evaluate, default 3769")
    parser.add_argument("--plain", type=int, default=60, help="frames for the plain way, default 60; 0 leaves it out")
    parser.add_argument("--threads", type=int, default=2, help="threads of the kernels, default 2")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls after the first, default 5")
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file as well")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    torch.set_num_threads(given.threads)
    truths, founds = make_frames(given.frames)
    counts = [sum(len(frame["name"]) for frame in side) for side in (truths, founds)]
    print(f"{given.frames} frames, {counts[0]} ground truths, {counts[1]} detections, {given.threads} threads")
    result = measure(truths, founds, given.repeats)
    print(
        f"{result['seconds']:.2f} s ({result['cpu_seconds']:.2f} s of CPU), the first call "
        f"{result['first_seconds']:.2f} s; the process held {result['process_peak_mib']:.0f} MiB at most"
    )
    if given.plain:
        a_frame = compare(truths, founds, given.plain)
        result["plain_seconds"] = a_frame * given.frames
        print(
            f"the plain way finds the same numbers on {given.plain} frames and would take "
            f"{result['plain_seconds']:.0f} s for all: {result['plain_seconds'] / result['seconds']:.0f} times as long"
        )
    if given.json:
        machine = {"threads": given.threads, "numpy": np.__version__, "python": platform.python_version()}
        machine["processor"] = platform.processor() or platform.machine()
        sizes = {"frames": given.frames, "ground_truths": counts[0], "detections": counts[1]}
        write_json(given.json, {"machine": machine, **sizes, **result})
        print(f"written to {given.json}")


if __name__ == "__main__":
    main()
