"""Operators and models on this GPU, against the card's own ceilings; writes ``benchmarks/results/gpu-<name>.md``.

    python benchmarks/gpu.py [--budget SECONDS] [--out FOLDER] [--device cpu --repeat 1]

Operators: the median of CUDA events, the least bytes that a call must move (its arguments and results) and the share of
the measured copying rate that this makes. Models: samples a second of inference (batch 1) and training (batch 4) in
fp32, fp16 and bf16, where a step's time goes, peak memory, and the 2-D backbone as it is, compiled, and as CUDA graphs.
What the budget leaves no time for is named. Rows are printed as they come, and the page is written anew after each
model, so that a run which is cut off is not lost. ``--device cpu`` runs the same code on a CPU, to try the script.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import model_costs as costs
import op_cases_boxes
import op_cases_points
import torch
from models import Bench
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pcdet.structures.batch import to_device
from pcdet.train_utils.device_usage import DeviceUsage
from pcdet.train_utils.launch import choose_device
from pcdet.train_utils.optimizers import can_skip_on_device
from pcdet.train_utils.precision import Precision
from pcdet.utils.files import write_text

MODELS = ("pv_rcnn", "second", "pointpillar", "voxel_rcnn_car", "pointrcnn", "pointnet2_ssg", "pointnet2_msg")
PRECISIONS = ("fp32", "fp16", "bf16")
MAPS = {"compiled": None, "CUDA graphs": "reduce-overhead"}  # torch.compile's mode for the 2-D backbone
PHASES = ("forward", "backward", "optimizer")
CLIP = 10.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--budget", type=float, default=480, help="seconds after which nothing new is begun")
    add("--repeat", type=int, default=7, help="timed calls, of which the median counts (default: 7)")
    add("--models", nargs="*", default=MODELS, help="stems of YAML files below cfgs")
    add("--no_operators", action="store_true", help="models alone")
    add("--out", type=Path, default=Path(__file__).with_name("results"), help="folder of the page")
    return parser.parse_args()


class Clock:
    """Milliseconds on a device: CUDA events on a GPU, the wall clock on a CPU."""

    def __init__(self, device: torch.device, repeat: int):
        self.device = device
        self.repeat = repeat

    @property
    def warm_up(self) -> int:
        """Calls that compile and fill caches."""
        return min(2, self.repeat)

    def mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: Any, last: Any) -> float:
        if self.device.type != "cuda":
            return 1000 * (last - first)
        last.synchronize()
        return first.elapsed_time(last)

    def median(self, work: Callable[[], Any], repeat: int | None = None) -> float:
        """Of several calls, after two that warm up and compile."""
        for _ in range(self.warm_up):
            work()
        times = []
        for _ in range(repeat or self.repeat):
            begin = self.mark()
            work()
            times.append(self.between(begin, self.mark()))
        return statistics.median(times)


class LeastBytes(TorchDispatchMode):
    """Adds up the bytes of arguments and results of this project's operators: what a call cannot do without."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        if function.namespace == "pcdet":
            self.total += sum(t.nbytes for t in _tensors((args, kwargs or {}, results)))
        return results


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def copying_rate(clock: Clock) -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.zeros(2**28 if clock.device.type == "cuda" else 2**24, device=clock.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / (clock.median(lambda: target.copy_(source)) / 1000)


class Page:
    """The page as it grows, row by row."""

    def __init__(self, path: Path, head: Sequence[str]):
        self.path = path
        self.head = head
        self.sections: dict[str, list[str]] = {}
        self.skipped: list[str] = []

    def add(self, section: str, *rows: str) -> None:
        """Print rows and put them into a section."""
        print(*rows, sep="\n", flush=True)
        self.sections.setdefault(section, []).extend(rows)

    def write(self) -> None:
        lines = [*self.head]
        for title, rows in self.sections.items():
            lines += ["", f"## {title}", "", *rows]
        lines += ["", "## Not measured", "", *(f"* {text}" for text in self.skipped or ["nothing was left out"]), ""]
        write_text(self.path, "\n".join(lines))


def operators(clock: Clock, copying: float, over: Callable[[], bool], page: Page) -> None:
    """A row for each operator at each size."""
    page.add("Operators", *heads("operator", "size", "ms", "reference", "least MB", "share of the copying rate"))
    torch.set_default_device(clock.device)
    try:
        for cases in (*op_cases_points.CASES, *op_cases_boxes.CASES):
            if over():
                page.skipped.append(f"operators: {cases.__name__}")
                continue
            for case in cases(False):
                page.add("Operators", operator_row(case, clock, copying, over))
    finally:
        torch.set_default_device("cpu")
    page.write()


def operator_row(case: Any, clock: Clock, copying: float, over: Callable[[], bool]) -> str:
    ms = clock.median(case.ours)
    with LeastBytes() as moved:
        case.ours()
    share = moved.total / (ms / 1000) / copying
    reference = case.others.get("reference")
    slower = "" if reference is None or over() else f"{clock.median(reference, 1) / ms:.1f}x"
    return f"| {case.name} | {case.size} | {ms:.3f} | {slower} | {moved.total / 1e6:.1f} | {share:.1%} |"


def models(given: argparse.Namespace, clock: Clock, over: Callable[[], bool], page: Page) -> None:
    """Rows of the models, and of their 2-D backbones compiled."""
    page.add("Models", *heads("model", "precision", "inference samples/s", "training samples/s",
                              *(f"{name} ms" for name in PHASES), "peak GiB", "GPU %"))  # fmt: skip
    benches = {}
    for name in given.models:
        if over():
            page.skipped.append(f"model {name}")
            continue
        benches[name] = bench = Bench(argparse.Namespace(device=clock.device.type, threads=None, kitti=None), name)
        for precision in PRECISIONS:
            if over() or (precision == "fp16" and clock.device.type == "cpu"):
                page.skipped.append(f"{name} in {precision}")
                continue
            page.add("Models", model_row(bench, name, precision, clock))
        page.write()
    compiled = "2-D backbone compiled"
    page.add(compiled, *heads("model", "precision", "2-D backbone", "inference samples/s"))
    for name, bench in benches.items():
        if not hasattr(bench.model, "backbone_2d"):
            continue
        for label, mode in MAPS.items():
            if over():
                page.skipped.append(f"{name} {label}")
                continue
            page.add(compiled, *map_rows(bench, name, label, mode, clock))
            page.write()


def heads(*columns: str) -> list[str]:
    """The head of a table."""
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def model_row(bench: Bench, name: str, precision: str, clock: Clock) -> str:
    device = bench.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    usage = DeviceUsage(device)
    scene = bench.batches(bench.test_set, 1, 1)[0]
    batch = bench.batches(bench.train_set, 4, 1)[0]
    bench.model.eval()
    with in_precision(device, precision):
        inference = clock.median(lambda: bench.infer(scene))
    bench.model.train()
    split = step_times(bench, batch, precision, clock)
    busy, whole = usage.read(), sum(split)
    peak = busy.get("device/peak_memory_gib", float("nan"))
    percent = f"{busy['device/utilisation_percent']:.0f}" if "device/utilisation_percent" in busy else "n/a"
    values = " | ".join(f"{ms:.1f}" for ms in split)
    return f"| {name} | {precision} | {1000 / inference:.1f} | {4000 / whole:.1f} | {values} | {peak:.2f} | {percent} |"


def in_precision(device: torch.device, precision: str) -> contextlib.AbstractContextManager:
    """The autocast of a precision."""
    return (Precision(device) if precision == "fp32" else Precision.mixed(device, 65536.0, precision)).autocast()


def step_times(bench: Bench, batch: dict[str, Any], precision: str, clock: Clock) -> list[float]:
    """Median milliseconds of the phases of a training step."""
    mixed = Precision(bench.device)
    if precision != "fp32":
        mixed = Precision.mixed(bench.device, 65536.0, precision)
    times = []
    for _ in range(clock.warm_up + clock.repeat):
        bench.optimizer.zero_grad(set_to_none=True)
        marks = [clock.mark()]
        with mixed.autocast():
            output = bench.model(to_device(batch, bench.device))
        loss = torch.stack([term.float() for term in output.losses.values()]).sum()
        marks.append(clock.mark())
        mixed.backward(loss)
        marks.append(clock.mark())
        mixed.unscale(bench.optimizer)  # with the clipping, and the decision on the device, as the engine has them
        norm = torch.nn.utils.clip_grad_norm_(bench.model.parameters(), CLIP)
        taken = norm.isfinite()
        mixed.step(bench.optimizer, taken if can_skip_on_device(bench.optimizer) else bool(taken), dropped=~taken)
        marks.append(clock.mark())
        times.append([clock.between(a, b) for a, b in zip(marks, marks[1:], strict=False)])
    return [statistics.median(phase) for phase in zip(*times[clock.warm_up :], strict=True)]


def map_rows(bench: Bench, name: str, label: str, mode: str | None, clock: Clock) -> Iterator[str]:
    """Inference with the 2-D backbone compiled; the module is as it was afterwards."""
    scene = bench.batches(bench.test_set, 1, 1)[0]
    bench.model.eval()
    plain = bench.model.backbone_2d
    bench.model.backbone_2d = torch.compile(plain, mode=mode)
    try:
        for precision in ("fp32", "bf16"):
            with in_precision(bench.device, precision):
                yield f"| {name} | {precision} | {label} | {1000 / clock.median(lambda: bench.infer(scene)):.1f} |"
    finally:
        bench.model.backbone_2d = plain


def main() -> int:
    """Measure, and write the page."""
    given = parse()
    began = time.monotonic()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no GPU can be used here: nothing was measured")
        return 0
    device = choose_device(given.device)
    clock = Clock(device, given.repeat)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"

    def over() -> bool:
        return time.monotonic() - began > given.budget

    copying, rate = copying_rate(clock), costs.product_rate(device)
    page = Page(
        given.out / f"gpu-{name.lower().replace(' ', '-')}.md",
        [
            f"# {name}",
            "",
            f"torch {torch.__version__}, CUDA {torch.version.cuda}. Copies {copying / 1e9:.0f} GB/s, multiplies fp32 "
            f"matrices at {rate / 1e12:.2f} TFLOP/s. Medians of {given.repeat} calls.",
        ],
    )
    print(*page.head, sep="\n", flush=True)
    if not given.no_operators:
        operators(clock, copying, over, page)
    models(given, clock, over, page)
    page.write()
    print(f"\nwritten to {page.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
