"""Training items of KITTI configurations on one process: milliseconds of CPU, stage by stage, against a plain way.

    python benchmarks/data_pipeline.py --data_path DATA [--models second pv_rcnn] [--items N] [--json OUT]

DATA is a folder in KITTI's layout; nothing is written into it. Two sets of frames are used: the whole sweeps, as KITTI
ships them, among ``train`` and ``val``; and all frames of ``train``, which may be cut to the camera's view already.
The database holds 600 objects: those of the frames, and copies of them turned about the sensor until there are 300
cars, 150 pedestrians and 150 cyclists. The alternative is ``data_pipeline_plain.py``; both make their items in turns,
on one thread. What is given are medians of CPU time, which other processes disturb less than the clock's. One pass over
the frames comes first: it compiles the kernels and fills the caches, as the first epoch of a training does.
"""

import argparse
import logging
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: idle threads of its matrix products use up time as well

import numpy as np
import torch
from data_pipeline_plain import PlainItems

from pcdet.config import load_config
from pcdet.datasets import build_dataset
from pcdet.datasets.augment import AUGMENTS, world
from pcdet.datasets.kitti.infos import create_infos
from pcdet.datasets.process import PROCESSORS
from pcdet.structures.boxes import rotate_z
from pcdet.utils.files import read_pickle, write_json, write_pickle, write_text

BATCH = 4
OBJECTS = {"Car": 300, "Pedestrian": 150, "Cyclist": 150}
WHOLE_SWEEP = 80_000  # points; what a camera sees is a fifth of it
MODELS = ("second", "pv_rcnn", "pointpillar", "pointrcnn")


class Clock:
    """Keeps the CPU time of named calls."""

    def __init__(self):
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.process_time()
            result = call(*args)
            self.seconds[name].append(time.process_time() - start)
            return result

        return run


def instrument(data: Any, clock: Clock) -> None:
    """Let the clock see every stage of ``data``'s items; moves of the world share a pass and so a stage."""
    names = {cls: name for registry in (AUGMENTS, PROCESSORS) for name, cls in registry.items()}
    data.load_scene = clock.timed("load", data.load_scene)
    for kind in (data.augmentors, data.processors):
        kind[:] = [t if isinstance(t, world.WorldMove) else clock.timed(names[type(t)], t) for t in kind]
    world.moved = clock.timed("world moves", world.moved)


def instrument_plain(data: PlainItems, clock: Clock) -> None:
    """The same for the plain way."""
    names = {"load": "load", "paste": "gt_sampling", "move": "world moves"}
    for method, name in (names | {block["NAME"]: block["NAME"] for block in data.processors}).items():
        setattr(data, method, clock.timed(name, getattr(data, method)))


class Side:
    """One way of making items, and what it took."""

    def __init__(self, data: Any, clock: Clock):
        self.data, self.clock = data, clock
        self.times: list[float] = []
        self.sizes: dict[str, list[int]] = defaultdict(list)
        self.made: list[Any] = []

    def make(self, number: int) -> None:
        start = time.process_time()
        item = self.data[number % len(self.data)]
        self.times.append(time.process_time() - start)
        for key in ("points", "gt_boxes", "voxels"):
            if key in item:
                self.sizes[key].append(len(item[key]))
        self.made.append(item)
        if len(self.made) == BATCH:
            self.clock.timed("collate", self.data.collate)(self.made)
            self.made = []

    def result(self) -> dict[str, Any]:
        medians = {name: 1e3 * statistics.median(seconds) for name, seconds in self.clock.seconds.items()}
        collate = medians.pop("collate") / BATCH
        item = 1e3 * statistics.median(self.times)
        return {
            "items_per_cpu_second": 1e3 / (item + collate),
            "ms_per_item_median": item,
            "ms_per_item_mean": 1e3 * statistics.fmean(self.times),
            "ms_per_item_p95": 1e3 * float(np.quantile(self.times, 0.95)),
            "mean_sizes": {key: statistics.fmean(values) for key, values in self.sizes.items()},
            "stages_ms_per_item": {**medians, "other": item - sum(medians.values()), "collate": collate},
        }


def measure(root: Path, model: str, items: int) -> dict[str, Any]:
    """Both ways over ``items`` items each, frames in turn."""
    settings = load_config(f"cfgs/kitti_models/{model}.yaml").settings
    ours = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=True, root=root)
    plain = PlainItems(root, settings.DATA_CONFIG, settings.CLASS_NAMES)
    for index in range(len(ours)):
        ours.collate([ours[index]])
        plain.collate([plain[index]])
    sides, moved = [Side(ours, Clock()), Side(plain, Clock())], world.moved
    instrument(ours, sides[0].clock)
    instrument_plain(plain, sides[1].clock)
    for number in range(items):
        ours.set_epoch(1 + number // len(ours))
        for side in sides:
            side.make(number)
    world.moved = moved
    found = {"ours": sides[0].result(), "plain": sides[1].result()}
    found["times_faster"] = found["plain"]["ms_per_item_median"] / found["ours"]["ms_per_item_median"]
    return found


def make_folder(source: Path, frames: Sequence[str], objects: Path, root: Path) -> None:
    """A KITTI folder of links to ``frames``, with infos and the database of ``objects``, a folder made likewise."""
    root.mkdir()
    (root / "training").symlink_to((source / "training").resolve())
    write_text(root / "ImageSets" / "train.txt", "\n".join(frames) + "\n")
    create_infos(root)
    if objects != root:
        write_pickle(root / "kitti_dbinfos_train.pkl", multiplied(objects))


def multiplied(root: Path) -> dict[str, list[dict]]:
    """The index of ``root``'s database with OBJECTS objects: wanted ones, and turned copies beside their files."""
    rng, index = np.random.default_rng(0), {}
    for name, rows in read_pickle(root / "kitti_dbinfos_train.pkl").items():
        good = [row for row in rows if row["num_points_in_gt"] >= 5 and row["difficulty"] >= 0]
        index[name] = [{**row, "path": str(root / row["path"])} for row in good[: OBJECTS.get(name, 0)]]
        while good and len(index[name]) < OBJECTS.get(name, 0):
            row, angle = good[len(index[name]) % len(good)], rng.uniform(-np.pi / 4, np.pi / 4)
            box = rotate_z(row["box3d_lidar"][None], angle)[0]
            box[6] += angle
            path = root / "gt_database" / f"turned_{name}_{len(index[name])}.bin"
            rotate_z(np.fromfile(root / row["path"], np.float32).reshape(-1, 4), angle).tofile(path)
            index[name].append({**row, "path": str(path), "box3d_lidar": box})
    return index


def frame_sets(source: Path) -> dict[str, list[str]]:
    """Name -> frames of ``train``: the whole sweeps, and all."""
    frames = (source / "ImageSets" / "train.txt").read_text(encoding="utf-8").split()
    others = source / "ImageSets" / "val.txt"
    labelled = frames + (others.read_text(encoding="utf-8").split() if others.is_file() else [])
    size = {f: (source / "training" / "velodyne" / f"{f}.bin").stat().st_size // 16 for f in labelled}
    whole = [f for f in labelled if size[f] >= WHOLE_SWEEP]
    return {name: found for name, found in (("whole sweeps", whole), ("all frames", frames)) if found}


def report(name: str, model: str, found: dict[str, Any]) -> str:
    ours, plain = found["ours"], found["plain"]
    stages = {**plain["stages_ms_per_item"], **ours["stages_ms_per_item"]}
    lines = [f"{model}, {name}:", f"  {'ms of CPU an item':<40} {'ours':>8} {'plain':>8}"]
    for stage in stages:
        costs = (side["stages_ms_per_item"][stage] for side in (ours, plain))
        lines.append("".join([f"  {stage:<40}", *(f" {ms:8.3f}" for ms in costs)]))
    for key in ("ms_per_item_median", "ms_per_item_p95", "items_per_cpu_second"):
        lines.append(f"  {key:<40} {ours[key]:8.2f} {plain[key]:8.2f}")
    for key, value in ours["mean_sizes"].items():
        lines.append(f"  {'mean number of ' + key:<40} {value:8.1f} {plain['mean_sizes'][key]:8.1f}")
    return "\n".join([*lines, f"  {found['times_faster']:.1f} times faster (medians)"])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_path", type=Path, required=True, help="KITTI folder with ImageSets and training")
    parser.add_argument("--models", nargs="+", default=MODELS, help="of cfgs/kitti_models, default: %(default)s")
    parser.add_argument("--items", type=int, default=200, help="items to time of each, default 200")
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file as well")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    torch.set_num_threads(1)
    logging.getLogger("pcdet").setLevel(logging.ERROR)
    source = given.data_path.resolve()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "everything"
        sets = frame_sets(source)
        make_folder(source, sorted({f for frames in sets.values() for f in frames}), everything, everything)
        for number, (name, frames) in enumerate(sets.items()):
            root = Path(folder) / str(number)
            make_folder(source, frames, everything, root)
            results[name] = {"frames": len(frames), "models": {}}
            for model in given.models:
                results[name]["models"][model] = measure(root, model, given.items)
                print(report(f"{name} ({len(frames)} frames)", model, results[name]["models"][model]), flush=True)
    if given.json:
        machine = {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
        }
        write_json(given.json, {"machine": machine, "items": given.items, "threads": 1, "sets": results})
        print(f"written to {given.json}")


if __name__ == "__main__":
    main()
