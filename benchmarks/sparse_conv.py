"""Time of sparse convolution: ours against the plain-torch reference and, where installed, against spconv's CPU build.

    python benchmarks/sparse_conv.py [--voxels 16000 40000] [--threads N] [--repeat R] [--json OUT]

The network is VoxelBackBone8x in training mode, the voxels those of a scanner over flat ground between walls, at 5 cm.
Ours runs with one thread and with ``--threads``; spconv with one: its CPU build computes wrong values with more.
Figures are medians in milliseconds, rulebooks included, the ways measured in turn in one process.
"""

import argparse
import importlib
import importlib.util
import math
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from unittest.mock import patch

import torch
from torch import Tensor

from pcdet.layers.sparse import library, reference
from pcdet.layers.sparse.modules import SparseConvolution
from pcdet.models.backbones_3d.voxel_backbone import VoxelBackBone8x
from pcdet.ops.voxelize import voxelize
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.files import write_json

RANGE, VOXEL, GRID = (0.0, -40.0, -3.0, 70.4, 40.0, 1.0), (0.05, 0.05, 0.1), (1408, 1600, 40)
INFO = DatasetInfo(("Car",), ("x", "y", "z", "intensity"), RANGE, VOXEL, GRID)
BEAMS, COLUMNS, HEIGHT = 64, 620, 1.73  # of the scanner: rows, columns in front of it, metres above the ground


def scan(generator: torch.Generator) -> Tensor:
    """(N, 4) points of one turn: each beam ends at the ground or at a wall of its sector."""
    elevation = torch.deg2rad(torch.linspace(-24.8, 2.0, BEAMS))[:, None]
    azimuth = torch.deg2rad(torch.linspace(-41, 41, COLUMNS))[None]
    walls = torch.rand(60, generator=generator) ** 2 * 60 + 6  # metres
    wall = walls.repeat_interleave(-(-COLUMNS // 60))[:COLUMNS].expand(BEAMS, -1) / azimuth.cos()
    ground = torch.where(elevation < 0, HEIGHT / torch.tan(-elevation).clamp(min=1e-3), math.inf)
    flat = torch.minimum(wall, ground.expand(-1, COLUMNS))
    flat = flat + 0.01 * torch.randn(flat.shape, generator=generator)
    points = torch.stack([flat * azimuth.cos(), flat * azimuth.sin(), flat * elevation.tan()], dim=-1)
    return torch.cat([points.view(-1, 3), torch.rand(flat.numel(), 1, generator=generator)], dim=1)


def make_voxels(count: int) -> tuple[Tensor, Tensor, int]:
    """Features (V, 4), coordinates (V, 4) and the number of scenes that ``count`` voxels need."""
    generator = torch.Generator().manual_seed(0)
    features, coords, found = [], [], 0
    while found < count:
        made = voxelize(scan(generator), RANGE, VOXEL, GRID, 5, 40_000)
        features.append(made.voxels.sum(dim=1) / made.num_points[:, None])
        coords.append(torch.nn.functional.pad(made.coords, (1, 0), value=len(coords)))
        found += len(made.coords)
    return torch.cat(features)[:count], torch.cat(coords)[:count], len(coords)


def by_spconv() -> AbstractContextManager:
    """Every layer computed by spconv, which reads a CUDA stream in its backward pass even on a CPU."""
    spconv = importlib.import_module("spconv.pytorch")
    importlib.import_module("spconv.pytorch.ops").get_current_stream = lambda: 0
    return patch.object(SparseConvolution, "forward", lambda layer, x: library.convolve(spconv, layer, x))


def by_reference() -> AbstractContextManager:
    """Rulebooks and products in plain torch, one kernel offset after the other."""
    both = ExitStack()
    for module in ("rulebook", "convolve"):
        both.enter_context(patch(f"pcdet.layers.sparse.{module}.backend", lambda tensor: reference))
    return both


def step(net: VoxelBackBone8x, voxels: tuple[Tensor, Tensor, int]) -> tuple[float, float]:
    """Seconds of one pass over the voxels, and of its gradients."""
    net.zero_grad()
    start = time.perf_counter()
    loss = net(*voxels).encoded_spconv_tensor.features.square().mean()
    middle = time.perf_counter()
    loss.backward()
    return middle - start, time.perf_counter() - middle


def measure(ways: dict[str, tuple[int, Callable[[], AbstractContextManager]]], voxels: tuple, repeat: int) -> dict:
    """Median milliseconds of every way, forward and backward, measured in turn."""
    torch.manual_seed(0)
    net = VoxelBackBone8x(INFO, {"voxel_features": 4})
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeat + 1):
        for name, (threads, context) in ways.items():
            torch.set_num_threads(threads)
            with context():
                seconds[name].append(step(net, voxels))
    medians = {
        name: [1000 * statistics.median(kind) for kind in zip(*times[1:], strict=True)]
        for name, times in seconds.items()
    }
    return {name: {"forward_ms": forward, "backward_ms": backward} for name, (forward, backward) in medians.items()}


def table(count: int, found: dict) -> str:
    """The figures of one size, with how many times longer than ours on one thread each way takes."""
    ours = found["ours, threads 1"]
    lines = [f"{count} voxels"]
    for name, row in found.items():
        cells = [f"{kind[:-3]} {ms:7.1f} ms ({ms / ours[kind]:5.2f} x)" for kind, ms in row.items()]
        lines.append(f"  {name:24} {'   '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voxels", type=int, nargs="+", default=[16_000, 40_000])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    ways = {}
    for threads in sorted({1, arguments.threads}):
        ways[f"ours, threads {threads}"] = (threads, nullcontext)
        ways[f"reference, threads {threads}"] = (threads, by_reference)
    if importlib.util.find_spec("spconv"):
        ways["spconv, threads 1"] = (1, by_spconv)
    results = {}
    for count in arguments.voxels:
        results[count] = measure(ways, make_voxels(count), arguments.repeat)
        print(table(count, results[count]), flush=True)
    if arguments.json:
        machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__}
        write_json(arguments.json, {"machine": machine, "repeat": arguments.repeat, "results": results})


if __name__ == "__main__":
    main()
