"""Training items a second of a KITTI configuration on one process, and the milliseconds of each stage.

    python benchmarks/data_pipeline.py [--cfg_file C] [--data_path D] [--items N] [--threads 1] [--json OUT]

The data set must have its infos (tools/create_data.py kitti). One pass over the frames warms up first: it compiles the
kernels and fills the caches of files and pasted objects, as the first epoch of a training does. The stages are timed
inside the same items that give the rate.
"""

import argparse
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pcdet.config import load_config
from pcdet.datasets import build_dataset
from pcdet.utils.files import write_json

BATCH = 4


class Clock:
    """Sums the time of named calls."""

    def __init__(self):
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            self.seconds[name] += time.perf_counter() - start
            return result

        return run


def registered_name(transform: Any) -> str:
    """The name a transform has in YAML."""
    from pcdet.datasets.augment import AUGMENTS
    from pcdet.datasets.process import PROCESSORS

    names = {cls: name for registry in (AUGMENTS, PROCESSORS) for name, cls in registry.items()}
    return names[type(transform)]


def instrument(data: Any, clock: Clock) -> None:
    """Let the clock see every stage of ``data``'s items."""
    data.load_scene = clock.timed("load", data.load_scene)
    data.augmentors = [clock.timed(registered_name(t), t) for t in data.augmentors]
    data.processors = [clock.timed(registered_name(t), t) for t in data.processors]


def measure(data: Any, items: int) -> dict[str, Any]:
    """Rate, median and stages over ``items`` items, frames in turn, each epoch with other random numbers."""
    for index in range(len(data)):
        data[index]
    clock = Clock()
    instrument(data, clock)
    times, points, boxes, made = [], [], [], []
    for number in range(items):
        data.set_epoch(1 + number // len(data))
        start = time.perf_counter()
        item = data[number % len(data)]
        times.append(time.perf_counter() - start)
        points.append(len(item["points"]))
        boxes.append(len(item["gt_boxes"]))
        made = [*made[1 - BATCH :], item]
        if len(made) == BATCH and number % BATCH == BATCH - 1:
            clock.timed("collate", data.collate)(made)
    stages = {name: 1e3 * seconds / items for name, seconds in clock.seconds.items()}
    stages["other"] = 1e3 * statistics.fmean(times) - sum(v for k, v in stages.items() if k != "collate")
    return {
        "items_per_second": items / (sum(times) + clock.seconds["collate"]),
        "ms_per_item_mean": 1e3 * statistics.fmean(times),
        "ms_per_item_median": 1e3 * statistics.median(times),
        "ms_per_item_p95": 1e3 * float(np.quantile(times, 0.95)),
        "points_per_item": statistics.fmean(points),
        "boxes_per_item": statistics.fmean(boxes),
        "stages_ms_per_item": stages,
    }


def report(result: dict[str, Any]) -> str:
    lines = [f"{name:<44} {ms:8.3f} ms" for name, ms in result["stages_ms_per_item"].items()]
    lines.append(
        f"{result['items_per_second']:.1f} items/s; an item takes {result['ms_per_item_median']:.2f} ms (median), "
        f"{result['ms_per_item_p95']:.2f} ms (95 %), and has {result['points_per_item']:.0f} points and "
        f"{result['boxes_per_item']:.1f} boxes"
    )
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cfg_file", default="cfgs/kitti_models/pointpillar.yaml", help="default: %(default)s")
    parser.add_argument("--data_path", help="folder with infos; default: the configuration's DATA_PATH")
    parser.add_argument("--items", type=int, default=200, help="items to time, default 200")
    parser.add_argument("--threads", type=int, default=1, help="threads of the kernels, default 1")
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file as well")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    torch.set_num_threads(given.threads)
    settings = load_config(given.cfg_file).settings
    data = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=True, root=given.data_path)
    result = measure(data, given.items)
    print(report(result))
    if given.json:
        machine = {
            "threads": given.threads,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
        }
        write_json(given.json, {"machine": machine, "cfg_file": given.cfg_file, "frames": len(data), **result})
        print(f"written to {given.json}")


if __name__ == "__main__":
    main()
