"""Where a model's time goes, how much arithmetic it does, and how fast this machine multiplies matrices."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

# The part of the table that a slot's time belongs to, unless an operator inside it has a part of its own.
SLOT_PARTS = {
    "vfe": "data",
    "backbone_3d": "3-D backbone",
    "map_to_bev_module": "BEV",
    "backbone_2d": "BEV",
    "pfe": "point ops",
    "dense_head": "heads",
    "point_head": "heads",
    "roi_head": "heads",
}
NMS = ("pcdet::nms_bev", "pcdet::nms_normal_bev")
POINT_OPS = (
    "pcdet::ball_query",
    "pcdet::furthest_point_sample",
    "pcdet::three_",
    "pcdet::take_rows",
    "pcdet::voxel_query",
    "pcdet::roi",
    "pcdet::vector_pool",
    "pcdet::points_in_boxes",
)


def shares(model: nn.Module, work: Callable[[], Any], passes: int) -> dict[str, float]:
    """Milliseconds a pass of each part: slots by :data:`SLOT_PARTS`, operators apart; what is left goes to the heads.

    The point feature encoder counts as point operators as a whole: it is little else. What no slot holds is decoding
    and selecting boxes.
    """
    with _named_slots(model), profile(activities=[ProfilerActivity.CPU]) as trace, record_function("pass"):
        work()
    events = trace.events()
    times = dict.fromkeys(dict.fromkeys(SLOT_PARTS.values()), 0.0) | {"NMS": 0.0}
    for event in events:
        part, inside = _part(event), _enclosing(event)
        if part is None or part == inside:
            continue
        times[part] += event.cpu_time_total
        if inside is not None:
            times[inside] -= event.cpu_time_total
    whole = sum(e.cpu_time_total for e in events if e.name == "pass")
    times["heads"] += whole - sum(times.values())
    return {part: micros / 1000 / passes for part, micros in times.items()}


def with_data(parts: dict[str, float], pass_ms: float, item_ms: float) -> dict[str, float]:
    """The parts of a pass, and the item before it, as fractions of both. The profiler's own time is scaled away."""
    scale = pass_ms / sum(parts.values())
    times = {part: scale * ms for part, ms in parts.items()}
    times["data"] += item_ms
    return {part: ms / (pass_ms + item_ms) for part, ms in times.items()}


@contextlib.contextmanager
def _named_slots(model: nn.Module) -> Iterator[None]:
    """Every slot's forward shows in a trace under ``slot:`` and its name."""
    handles = []
    for name, module in model.named_children():
        if name in SLOT_PARTS:
            held: list[Any] = []

            def before(_m: nn.Module, _a: Any, label: str = f"slot:{name}", held: list[Any] = held) -> None:
                held.append(record_function(label))
                held[-1].__enter__()

            def after(_m: nn.Module, _a: Any, _o: Any, held: list[Any] = held) -> None:
                held.pop().__exit__(None, None, None)

            handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _part(event: FunctionEvent) -> str | None:
    """The part that an event opens, if any."""
    if event.name.startswith("slot:"):
        return SLOT_PARTS[event.name.removeprefix("slot:")]
    if event.name in NMS:
        return "NMS"
    return "point ops" if event.name.startswith(POINT_OPS) else None


def _enclosing(event: FunctionEvent) -> str | None:
    """The part of the nearest event around this one that has one."""
    around = event.cpu_parent
    while around is not None:
        if (part := _part(around)) is not None:
            return part
        around = around.cpu_parent
    return None


def flops(work: Callable[[], Any]) -> float:
    """Floating-point operations of ``work``: products and convolutions of torch, of sparse convolutions and our own."""
    counter = FlopCounterMode(display=False)
    with _counted_sparse_products() as sparse, _counted_products() as own, counter:
        work()
    return counter.get_total_flops() + sparse.flops + sum(own)


@contextlib.contextmanager
def _counted_products() -> Iterator[list[float]]:
    """What each of the products of set abstraction does: they run in threads, where torch does not count."""
    from pcdet.ops.grouped_mlp import cpu

    counts, kept = [], cpu.product

    def product(rows: Tensor, weight: Tensor) -> Tensor:
        counts.append(2.0 * rows.numel() * len(weight))
        return kept(rows, weight)

    cpu.product = product
    try:
        yield counts
    finally:
        cpu.product = kept


@contextlib.contextmanager
def _counted_sparse_products() -> Iterator[SimpleNamespace]:
    """Counts what compiled sparse convolutions do, which torch cannot see: two operations a pair, input and output."""
    from pcdet.layers.sparse import cpu

    count = SimpleNamespace(flops=0.0)
    kept = cpu.product, cpu.product_gradient

    def product(features: Tensor, weight: Tensor, rulebook: Any, inverse: bool) -> Tensor:
        count.flops += 2 * int((rulebook.table >= 0).sum()) * weight.shape[1] * weight.shape[2]
        return kept[0](features, weight, rulebook, inverse)

    def gradient(features: Tensor, grad: Tensor, rulebook: Any, inverse: bool) -> Tensor:
        count.flops += 2 * int((rulebook.table >= 0).sum()) * features.shape[1] * grad.shape[1]
        return kept[1](features, grad, rulebook, inverse)

    cpu.product, cpu.product_gradient = product, gradient
    try:
        yield count
    finally:
        cpu.product, cpu.product_gradient = kept


def product_rate(
    device: torch.device, size: int = 2048, multiply: Callable[[Tensor, Tensor], Tensor] = torch.mm
) -> float:
    """Operations a second of a float32 matrix product of this size, the median of nine."""
    from pcdet.train_utils.evaluate import wait_for

    a, b = torch.randn(2, size, size, device=device)
    times = []
    for _ in range(10):
        wait_for(device)
        began = time.perf_counter()
        multiply(a, b)
        wait_for(device)
        times.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(times[1:])


def fastest_product_rate(device: torch.device) -> float:
    """The higher rate of torch's product and, on a CPU, oneDNN's, which computes its convolutions too."""
    from pcdet.ops.products import product

    ways = (torch.mm, product) if device.type == "cpu" else (torch.mm,)
    return max(product_rate(device, multiply=multiply) for multiply in ways)


def resident_mib(device: torch.device) -> float:
    """Memory held now: by the GPU's allocator, or by this process (Linux alone tells)."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / 2**20
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
