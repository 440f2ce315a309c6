"""Time of a training step and of an inference pass, and the memory they take, model by model."""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

CONFIGS = {
    "pointpillar": "cfgs/kitti_models/pointpillar.yaml",
    "second": "cfgs/kitti_models/second.yaml",
    "pointnet2_ssg": "cfgs/modelnet_models/pointnet2_ssg.yaml",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--models", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--threads", type=int, help="torch's threads on a CPU (default: torch's own choice)")
    add("--batch_size", type=int, default=2, help="scenes or clouds at once")
    add("--repeat", type=int, default=5, help="timed passes after one that is not timed; the median counts")
    add("--kitti", type=Path, help="a KITTI folder with infos (default: simulated frames, kept in data)")
    add("--json", type=Path, help="write the numbers here")
    add("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure every model in a process of its own, because peak memory never falls."""
    given = parse()
    if given.worker:
        print(json.dumps(measure(given, given.worker)))
        return 0
    rows = [in_own_process(name) for name in given.models]
    print(f"{'model':<15}{'step ms':>10}{'inference ms':>14}{'peak MiB':>10}{'parameters':>12}")
    for row in rows:
        numbers = f"{row['step_ms']:>10.1f}{row['inference_ms']:>14.1f}{row['peak_mib']:>10.0f}"
        print(f"{row['model']:<15}{numbers}{row['parameters']:>12,}")
    if given.json:
        from pcdet.utils.files import write_json

        write_json(given.json, {"machine": platform.processor() or platform.machine(), "rows": rows})
    return 0


def in_own_process(name: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--worker", name], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{name} failed; its message stands above")
    return json.loads(done.stdout.splitlines()[-1])


def measure(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """The numbers of one model."""
    import torch

    from pcdet.config import load_config
    from pcdet.models.build import build_model
    from pcdet.structures.batch import to_device
    from pcdet.train_utils.launch import choose_device, keep_freed_memory
    from pcdet.train_utils.optimizers import build_optimizer
    from pcdet.train_utils.settings import Optimization

    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    device = choose_device(given.device)
    if device.type == "cpu":  # as the tools do
        keep_freed_memory()
    settings = load_config(CONFIGS[name]).settings
    info, batch = inputs(given, settings)
    batch = to_device(batch, device)
    model = build_model(settings.MODEL, info).to(device)
    optimizer = build_optimizer(model, Optimization.from_settings(settings.OPTIMIZATION))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(model(batch).losses.values())).sum().backward()
        optimizer.step()

    def infer() -> None:
        with torch.no_grad():
            model(batch)

    model.train()
    step_ms = median_ms(step, given.repeat, device)
    model.eval()
    inference_ms = median_ms(infer, given.repeat, device)
    return {
        "model": name,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "batch_size": given.batch_size,
        "step_ms": step_ms,
        "inference_ms": inference_ms,
        "peak_mib": peak_mib(device),
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
    }


def median_ms(work: Callable[[], None], repeat: int, device: Any) -> float:
    """Milliseconds a call, the first one left out."""
    from pcdet.train_utils.evaluate import wait_for

    times = []
    for _ in range(repeat + 1):
        wait_for(device)
        began = time.perf_counter()
        work()
        wait_for(device)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def peak_mib(device: Any) -> float:
    """Largest memory so far: of the GPU's allocator, or of this process."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def inputs(given: argparse.Namespace, settings: Any) -> tuple[Any, dict[str, Any]]:
    """What a model is told about its data, and a batch."""
    from pcdet.structures.dataset_info import DatasetInfo

    if "POINT_CLOUD_RANGE" not in settings.DATA_CONFIG:
        info = DatasetInfo(tuple(settings.CLASS_NAMES), ("x", "y", "z"))
        return info, random_clouds(given.batch_size, settings.DATA_CONFIG.NUM_POINTS, info.num_class)
    dataset = frames(given, settings)
    items = [dataset[i % len(dataset)] for i in range(given.batch_size)]
    return dataset.info, dataset.collate(items)


def random_clouds(size: int, points: int, classes: int) -> dict[str, Any]:
    """Clouds drawn on the unit sphere: (B, N, 3)."""
    import torch

    clouds = torch.nn.functional.normalize(torch.randn(size, points, 3), dim=2)
    return {"batch_size": size, "point_clouds": clouds, "class_labels": torch.arange(size) % classes}


def frames(given: argparse.Namespace, settings: Any) -> Any:
    """The training frames of a KITTI folder, or simulated ones, without augmentation."""
    from pcdet.datasets import build_dataset

    folder = given.kitti or simulated()
    data = {**settings.DATA_CONFIG, "DATA_AUGMENTOR": None}
    return build_dataset(data, settings.CLASS_NAMES, training=True, root=folder)


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
