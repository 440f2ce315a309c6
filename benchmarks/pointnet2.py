"""PointNet++ for classification beside the plain way to write it: a training step and inference, and their parts.

    python benchmarks/pointnet2.py [--models ssg msg] [--points 1024 4096] [--batch 16] [--threads 2] [--json OUT]
    python benchmarks/pointnet2.py --exact [--models ssg] [--batch 8]

Both have equal weights and get equal clouds, simulated shapes; logits, gradients and evaluation must agree. They take
turns in one process; the median counts, and the ratio is that of the medians. "Bound" is the arithmetic of the plain
MLPs (all places of all balls; three products a layer in training) over the rate of a large matrix product by the
faster of torch's two libraries, measured in the same process; ours may do less (``ours_gflop``). The parts are a
profiler's: furthest point sampling; grouping (ball queries, and in the plain one the gather and the gradient of both);
all else is MLPs, with our gather.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import model_costs as costs
import numpy as np
import pointnet2_plain
import torch
import torch.nn.functional as F
from pointnet2_plain import PlainClassifier
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pcdet.config import load_config  # noqa: E402
from pcdet.datasets import describe_clouds  # noqa: E402
from pcdet.datasets.synthetic.shapes import SHAPES, sample_shape  # noqa: E402
from pcdet.models.build import build_model  # noqa: E402
from pcdet.train_utils.launch import keep_freed_memory  # noqa: E402
from pcdet.utils.files import write_json  # noqa: E402

SAMPLING = ("pcdet::furthest_point_sample", "plain::sampling")
GROUPING = ("pcdet::ball_query", "plain::grouping", "autograd::engine::evaluate_function: IndexBackward0")
OUTCOMES = ("training_logits", "evaluation_logits", "clouds_gradient", "parameters_gradient")
TOLERANCE = 0.05  # gradients: a value near 0 may be on the other side of a ReLU, and another row the largest


def build(name: str) -> nn.Module:
    """The classifier of ``cfgs/modelnet_models``, without dropout, so that two of it can be compared."""
    settings = load_config(ROOT / "cfgs" / "modelnet_models" / f"pointnet2_{name}.yaml").settings
    settings.MODEL.CLS_HEAD.DROPOUT = 0.0
    torch.manual_seed(0)
    return build_model(settings.MODEL, describe_clouds(settings.DATA_CONFIG, settings.CLASS_NAMES))


class Way:
    """One of the two, with its optimiser."""

    def __init__(self, model: nn.Module, logits: Callable[[Tensor], Tensor], clouds: Tensor, labels: Tensor):
        self.model, self.logits, self.clouds, self.labels = model, logits, clouds, labels
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.0)  # 0: both stay equal

    def step(self) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        F.cross_entropy(self.logits(self.clouds), self.labels).backward()
        self.optimizer.step()

    def infer(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.logits(self.clouds)

    def outcome(self) -> list[Tensor]:
        """Logits (B, K) in training and in evaluation, and the gradient of the loss in clouds and in all parameters."""
        self.model.eval()
        with torch.no_grad():
            evaluated = self.logits(self.clouds)
        self.model.train()
        self.optimizer.zero_grad()
        clouds = self.clouds.clone().requires_grad_()
        logits = self.logits(clouds)
        F.cross_entropy(logits, self.labels).backward()
        gradient = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        return [logits.detach(), evaluated, clouds.grad, gradient]


def objects(batch: int, points: int) -> Tensor:
    """(B, N, 3) clouds of different simulated shapes, centred and of radius 1 as the data set's."""
    names = list(SHAPES)
    chosen = [names[i * len(names) // batch] for i in range(batch)]
    made = [sample_shape(name, points, np.random.default_rng(i))[:, :3] for i, name in enumerate(chosen)]
    clouds = torch.from_numpy(np.stack(made))
    clouds = clouds - clouds.mean(dim=1, keepdim=True)
    return clouds / clouds.norm(dim=-1).amax(dim=1)[:, None, None]


def by_differences(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances (B, S, 3), (B, N, 3) -> (B, S, N) without the rounding of large products."""
    x, y, z = (a[:, :, None] - b[:, None]).square().unbind(-1)
    return x + y + z


def difference(ours: Way, plain: Way) -> dict[str, float]:
    """The norm of the difference over the norm, of all outcomes. Raises ``ValueError`` where one is too large.

    Here alone the plain one measures distances as ours does: rounding would put points on other sides of a border.
    """
    with mock.patch.object(pointnet2_plain, "squared_distances", by_differences):
        theirs = plain.outcome()
    pairs = zip(OUTCOMES, ours.outcome(), theirs, strict=True)
    found = {name: ((a - b).norm() / b.norm()).item() for name, a, b in pairs}
    if max(found.values()) > TOLERANCE:
        raise ValueError(f"the two differ by {found}")
    return found


def distances_from_exact(name: str, given: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Of each outcome, how far ours and the plain one are from the plain one in double precision, as parts of it."""
    clouds, labels = objects(given.batch, 1024), torch.arange(given.batch) % 40
    model = build(name)
    ours = Way(model, lambda x: model.cls_head(model.backbone_3d(x).global_features).logits, clouds, labels)
    single, double = PlainClassifier(model), PlainClassifier(model).double()
    with mock.patch.object(pointnet2_plain, "squared_distances", by_differences):
        found = ours.outcome(), Way(single, single, clouds, labels).outcome()
        exact = Way(double, double, clouds.double(), labels).outcome()
    return {
        outcome: tuple(((a - e).norm() / e.norm()).item() for a in pair)
        for outcome, e, *pair in zip(OUTCOMES, exact, *found, strict=True)
    }


def interleaved(works: dict[str, Callable[[], None]], repeat: int) -> dict[str, float]:
    """Median milliseconds of each, in turns, after one pass that warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeat + 1):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def shares(work: Callable[[], None]) -> dict[str, float]:
    """The parts of one pass, as fractions of it."""
    began = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        work()
        whole = time.perf_counter() - began
    parts = {"sampling": 0.0, "grouping": 0.0}
    for event in trace.events():
        for part, names in zip(parts, (SAMPLING, GROUPING), strict=True):
            if event.name in names:
                parts[part] += event.cpu_time_total / 1e6 / whole
    return {**parts, "MLPs": 1 - sum(parts.values())}


def measure(name: str, points: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for the training step and one for inference."""
    clouds, labels = objects(given.batch, points), torch.arange(given.batch) % 40
    model = build(name)
    plain_model = PlainClassifier(model)
    ours = Way(model, lambda x: model.cls_head(model.backbone_3d(x).global_features).logits, clouds, labels)
    plain = Way(plain_model, plain_model, clouds, labels)
    differences = difference(ours, plain)
    cpu = torch.device("cpu")
    rate = costs.fastest_product_rate(cpu)
    rows = []
    for what in ("step", "infer"):
        mine, other = getattr(ours, what), getattr(plain, what)
        times = interleaved({"ours": mine, "plain": other}, given.repeat)
        work = costs.flops(other)
        rows.append(
            {
                "model": name,
                "points": points,
                "batch": given.batch,
                "what": what,
                "ours_ms": times["ours"],
                "plain_ms": times["plain"],
                "ratio": times["plain"] / times["ours"],
                "bound_ms": 1000 * work / rate,
                "product_gflop_per_s": rate / 1e9,
                "ours_gflop": costs.flops(mine) / 1e9,
                "plain_gflop": work / 1e9,
                "ours_shares": shares(mine),
                "plain_shares": shares(other),
                "differences": differences,
            }
        )
    return rows


def line(row: dict[str, Any]) -> str:
    parts = " ".join(f"{100 * row[f'{way}_shares'][p]:3.0f}" for way in ("ours", "plain") for p in row["ours_shares"])
    return (
        f"{row['model']:<5}{row['points']:>6}{row['batch']:>6}  {row['what']:<6}{row['ours_ms']:>9.0f}"
        f"{row['plain_ms']:>9.0f}{row['ratio']:>7.2f}{row['bound_ms']:>9.0f}   {parts}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", nargs="+", default=["ssg", "msg"], choices=["ssg", "msg"])
    add("--points", nargs="+", type=int, default=[1024, 4096], help="points of a cloud, default 1024 4096")
    add("--batch", type=int, default=16, help="clouds of a batch, default 16")
    add("--threads", type=int, default=2, help="torch's threads, default 2")
    add("--repeat", type=int, default=5, help="timed passes; the median counts; default 5")
    add("--exact", action="store_true", help="time nothing: compare both with double precision, at 1024 points")
    add("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main() -> None:
    given = parse()
    torch.set_num_threads(given.threads)
    keep_freed_memory()  # as the tools do
    if given.exact:
        for name in given.models:
            for outcome, (ours, plain) in distances_from_exact(name, given).items():
                print(f"{name:<5}{outcome:<22}from double precision: ours {ours:.1e}, plain {plain:.1e}")
        return
    print("model points batch  what     ours ms plain ms  ratio bound ms   % sampling grouping MLPs, ours and plain")
    rows = []
    for name in given.models:
        for points in given.points:
            for row in measure(name, points, given):
                rows.append(row)
                print(line(row), flush=True)
    if given.json:
        machine = platform.processor() or platform.machine()
        write_json(given.json, {"machine": machine, "threads": given.threads, "torch": torch.__version__, "rows": rows})


if __name__ == "__main__":
    main()
