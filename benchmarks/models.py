"""What each model costs on this machine: loading, data, inference, a training step, memory, and what bounds them.

    python benchmarks/models.py [--models NAME ...] [--kitti FOLDER] [--leak 200] [--json OUT]

Every model is measured in a process of its own, because peak memory never falls. Inference is one frame at a time, a
training step takes a batch of two; figures are medians over different frames after passes that warm up (and compile).
"Bound" is arithmetic: the multiplications and additions that torch and the sparse convolutions do, over the rate of a
large matrix product (the faster of two libraries) measured in the same process.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import model_costs as costs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

ZOO = sorted(p.stem for p in (ROOT / "cfgs" / "kitti_models").glob("*.yaml") if "overfit" not in p.stem)
CLASSIFIERS = ["pointnet2_ssg"]
SHARES = ("data", "3-D backbone", "BEV", "point ops", "heads", "NMS")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", nargs="+", default=[*ZOO, *CLASSIFIERS], help="stems of YAML files below cfgs; default: all")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--threads", type=int, help="torch's threads on a CPU (default: torch's own choice)")
    add("--batch_size", type=int, default=2, help="scenes or clouds in a training step")
    add("--repeat", type=int, default=5, help="timed passes; the median counts")
    add("--kitti", type=Path, help="a KITTI folder with infos (default: simulated frames, kept in data)")
    add("--leak", type=int, metavar="N", help="take N training steps instead and report how memory grew")
    add("--json", type=Path, help="write the numbers here")
    add("--worker", help=argparse.SUPPRESS)
    add("--began", type=float, help=argparse.SUPPRESS)  # when the worker's process was started
    return parser.parse_args()


def main() -> int:
    """Measure every model and print a table."""
    given = parse()
    if given.worker:
        work = growth if given.leak else measure
        print(json.dumps(work(given, given.worker)))
        return 0
    rows = []
    for name in given.models:
        rows.append(in_own_process(name))
        print((leak_line if given.leak else line)(rows[-1], header=len(rows) == 1), flush=True)
    if given.json:
        from pcdet.utils.files import write_json

        data = str(given.kitti.name) if given.kitti else "simulated"
        write_json(given.json, {"machine": platform.processor() or platform.machine(), "data": data, "rows": rows})
    return 0


def in_own_process(name: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--worker", name, "--began", str(time.time())],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{name} failed; its message stands above")
    return json.loads(done.stdout.splitlines()[-1])


def line(row: dict[str, Any], header: bool) -> str:
    """A row of the table, with the shares of an inference pass (its item included) in per cent."""
    names = ["load s", "item ms", "infer ms", "bound", "step ms", "bound", "peak MiB", *SHARES]
    keys = ["load_s", "item_ms", "inference_ms", "inference_bound_ms", "step_ms", "step_bound_ms", "peak_mib"]
    values = [f"{row[k]:.1f}" if k == "load_s" else f"{row[k]:.0f}" for k in keys]
    shares = [f"{100 * row['shares'].get(s, 0):.0f} %" for s in SHARES]
    layout = "{:<40}" + "".join(f"{{:>{max(9, len(n) + 2)}}}" for n in names)
    text = layout.format(row["model"], *values, *shares)
    return f"{layout.format('model', *names)}\n{text}" if header else text


def leak_line(row: dict[str, Any], header: bool) -> str:
    layout = "{:<40}{:>8}{:>18}{:>18}{:>14}"
    text = layout.format(
        row["model"], row["steps"], *(f"{row[k]:.1f}" for k in ("early_mib", "late_mib", "growth_mib"))
    )
    titles = ("model", "steps", "MiB, 2nd quarter", "MiB, 4th quarter", "growth MiB")
    return f"{layout.format(*titles)}\n{text}" if header else text


class Bench:
    """A model with its optimiser and its data, as the tools make them."""

    def __init__(self, given: argparse.Namespace, name: str):
        from pcdet.config import load_config
        from pcdet.models.build import build_model
        from pcdet.train_utils.launch import choose_device, keep_freed_memory
        from pcdet.train_utils.optimizers import build_optimizer
        from pcdet.train_utils.settings import Optimization

        self.torch = __import__("torch")
        if given.threads:
            self.torch.set_num_threads(given.threads)
        self.torch.manual_seed(0)
        self.device = choose_device(given.device)
        if self.device.type == "cpu":  # as the tools do
            keep_freed_memory()
        settings = load_config(config_file(name)).settings
        self.train_set, self.test_set = data_sets(given, settings)
        self.model = build_model(settings.MODEL, self.train_set.info).to(self.device)
        self.optimizer = build_optimizer(self.model, Optimization.from_settings(settings.OPTIMIZATION))

    def batches(self, dataset: Any, size: int, count: int) -> list[dict[str, Any]]:
        from pcdet.structures.batch import to_device

        groups = [[(size * i + j) % len(dataset) for j in range(size)] for i in range(count)]
        return [to_device(dataset.collate([dataset[k] for k in group]), self.device) for group in groups]

    def step(self, batch: dict[str, Any]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.torch.stack(list(self.model(batch).losses.values())).sum().backward()
        self.optimizer.step()

    def infer(self, batch: dict[str, Any]) -> None:
        with self.torch.no_grad():
            self.model(batch)


def config_file(name: str) -> Path:
    """The YAML whose stem is ``name``, KITTI's first. Raises ``SystemExit`` where there is none."""
    found = sorted((ROOT / "cfgs").glob(f"*_models/{name}.yaml"), key=lambda p: p.parent.name != "kitti_models")
    if not found:
        raise SystemExit(f"no YAML below {ROOT / 'cfgs'} is called {name}.yaml")
    return found[0]


def measure(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """The numbers of one model."""
    bench = Bench(given, name)
    load_s = time.time() - given.began
    scenes = bench.batches(bench.test_set, 1, given.repeat)
    item_ms = median_ms(lambda i: bench.train_set[i % len(bench.train_set)], range(given.repeat), bench.device)
    bench.model.eval()
    bench.infer(scenes[0])
    inference_ms = median_ms(bench.infer, scenes, bench.device)
    shares = costs.shares(bench.model, lambda: [bench.infer(scene) for scene in scenes], len(scenes))
    test_item_ms = median_ms(lambda i: bench.test_set[i % len(bench.test_set)], range(given.repeat), bench.device)
    inference_flops = costs.flops(lambda: bench.infer(scenes[0]))
    bench.model.train()
    batches = bench.batches(bench.train_set, given.batch_size, given.repeat)
    bench.step(batches[0])
    step_ms = median_ms(bench.step, batches, bench.device)
    step_flops = costs.flops(lambda: bench.step(batches[0]))
    rate = costs.fastest_product_rate(bench.device)
    return {
        "model": name,
        "device": bench.torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "cpu",
        "threads": bench.torch.get_num_threads(),
        "torch": bench.torch.__version__,
        "parameters": sum(p.numel() for p in bench.model.parameters()),
        "load_s": load_s,
        "item_ms": item_ms,
        "inference_ms": inference_ms,
        "inference_gflop": inference_flops / 1e9,
        "inference_bound_ms": 1000 * inference_flops / rate,
        "batch_size": given.batch_size,
        "step_ms": step_ms,
        "step_gflop": step_flops / 1e9,
        "step_bound_ms": 1000 * step_flops / rate,
        "product_gflop_per_s": rate / 1e9,
        "peak_mib": peak_mib(bench.device),
        "shares": costs.with_data(shares, inference_ms, test_item_ms),
    }


def growth(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Memory of the second and of the last quarter of many training steps, each on new items."""
    bench = Bench(given, name)
    bench.model.train()
    resident = []
    for i in range(given.leak):
        bench.train_set.set_epoch(i)
        bench.step(bench.batches(bench.train_set, given.batch_size, 1)[0])
        resident.append(costs.resident_mib(bench.device))
    quarter = len(resident) // 4
    early, late = max(resident[quarter : 2 * quarter]), max(resident[3 * quarter :])
    return {"model": name, "steps": given.leak, "early_mib": early, "late_mib": late, "growth_mib": late - early}


def median_ms(work: Callable[[Any], Any], inputs: Any, device: Any) -> float:
    """Milliseconds a call, over the inputs."""
    return statistics.median(_timed(work, inputs, device))


def _timed(work: Callable[[Any], Any], inputs: Any, device: Any) -> Iterator[float]:
    from pcdet.train_utils.evaluate import wait_for

    for value in inputs:
        wait_for(device)
        began = time.perf_counter()
        work(value)
        wait_for(device)
        yield 1000 * (time.perf_counter() - began)


def peak_mib(device: Any) -> float:
    """Largest memory so far: of the GPU's allocator, or of this process."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def data_sets(given: argparse.Namespace, settings: Any) -> tuple[Any, Any]:
    """Training items, augmented as the YAML says, and test items."""
    from pcdet.datasets import build_dataset

    if "POINT_CLOUD_RANGE" not in settings.DATA_CONFIG:
        clouds = RandomClouds(settings.DATA_CONFIG.NUM_POINTS, settings.CLASS_NAMES)
        return clouds, clouds
    folder = given.kitti or simulated()
    make = [build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=t, root=folder) for t in (True, False)]
    return make[0], make[1]


class RandomClouds:
    """Clouds drawn on the unit sphere: (N, 3) each."""

    def __init__(self, points: int, class_names: list[str]):
        from pcdet.structures.dataset_info import DatasetInfo

        self.points = points
        self.info = DatasetInfo(tuple(class_names), ("x", "y", "z"))

    def __len__(self) -> int:
        return 64

    def set_epoch(self, epoch: int) -> None:
        """The clouds are always the same."""

    def __getitem__(self, index: int) -> Any:
        import torch

        generator = torch.Generator().manual_seed(index)
        return torch.nn.functional.normalize(torch.randn(self.points, 3, generator=generator), dim=1)

    def collate(self, clouds: list[Any]) -> dict[str, Any]:
        import torch

        labels = torch.arange(len(clouds)) % self.info.num_class
        return {"batch_size": len(clouds), "point_clouds": torch.stack(clouds), "class_labels": labels}


def simulated() -> Path:
    """A few simulated frames in KITTI's layout, kept for the next run."""
    from pcdet.datasets.kitti.infos import create_infos
    from pcdet.datasets.synthetic import simulate_kitti

    folder = ROOT / "data" / "benchmark_kitti"
    if not (folder / "kitti_infos_train.pkl").is_file():
        simulate_kitti(folder, 10, 0)
        create_infos(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
