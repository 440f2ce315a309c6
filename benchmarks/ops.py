"""Time of each operator against its plain-torch reference and, where one is installed, against a peer.

    python benchmarks/ops.py [--quick] [--threads N] [--only NAME] [--json OUT]

Inputs are drawn from a fixed seed. Every figure is the median wall time of several calls after one that warms up (and
compiles); "x" columns say how many times longer than ours another way takes. Peers that are not installed are left out.
"""

import argparse
import importlib.util
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import pcdet.ops.ball_query.reference as ball_query_reference
import pcdet.ops.furthest_point_sampling.reference as fps_reference
import pcdet.ops.iou3d.reference as iou_reference
import pcdet.ops.nms.reference as nms_reference
import pcdet.ops.points_in_boxes.reference as points_in_boxes_reference
import pcdet.ops.voxelize.reference as voxelize_reference
from pcdet.ops.ball_query import ball_query
from pcdet.ops.furthest_point_sampling import furthest_point_sample
from pcdet.ops.grouping import group_points
from pcdet.ops.iou3d import boxes_iou3d, boxes_iou_bev
from pcdet.ops.nms import nms_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index, points_in_boxes_mask
from pcdet.ops.voxelize import voxelize
from pcdet.utils.files import write_json

KITTI_PILLARS = ([0.0, -39.68, -3.0, 69.12, 39.68, 1.0], [0.16, 0.16, 4.0], [432, 496, 1])
KITTI_VOXELS = ([0.0, -40.0, -3.0, 70.4, 40.0, 1.0], [0.05, 0.05, 0.1], [1408, 1600, 40])


@dataclass
class Case:
    """One operator at one size, and other ways to the same answer."""

    name: str
    size: str
    ours: Callable[[], object]
    others: dict[str, Callable[[], object]] = field(default_factory=dict)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def shapes(batch: int, n: int) -> Tensor:
    """(B, N, 3) points in a unit ball, as clouds of a classification task."""
    points = torch.randn(batch, n, 3, generator=generator())
    return points / points.norm(dim=-1, keepdim=True).clamp(min=1)


def lidar(n: int) -> Tensor:
    """(N, 4) points x y z intensity that thin out with distance, in front of the scanner."""
    g = generator()
    distance = 2 + 70 * torch.rand(n, generator=g) ** 2
    angle = 1.6 * (torch.rand(n, generator=g) - 0.5)
    z = -1.7 + 0.3 * torch.randn(n, generator=g) + 3 * torch.rand(n, generator=g) ** 4
    return torch.stack([distance * angle.cos(), distance * angle.sin(), z, torch.rand(n, generator=g)], dim=1)


def boxes(m: int) -> Tensor:
    """(M, 7) boxes the size of cars, over 70 x 80 m."""
    place = torch.rand(m, 3, generator=generator()) * torch.tensor([70.0, 80.0, 1.0]) - torch.tensor([0.0, 40.0, 1.5])
    size = torch.tensor([3.9, 1.6, 1.56]) * (0.8 + 0.4 * torch.rand(m, 3, generator=generator()))
    return torch.cat([place, size, (torch.rand(m, 1, generator=generator()) - 0.5) * 2 * math.pi], dim=1)


def sampling_cases(quick: bool) -> Iterator[Case]:
    clouds = [("B16 1024 -> 512", shapes(16, 1024), 512), ("20k -> 2048", lidar(20_000)[None, :, :3], 2048)]
    if not quick:
        clouds.append(("120k -> 2048", lidar(120_000)[None, :, :3], 2048))
    for size, points, wanted in clouds:
        others = {"reference": lambda p=points, s=wanted: fps_reference.sample_batch(p, s)}
        yield Case("furthest_point_sample", size, lambda p=points, s=wanted: furthest_point_sample(p, s), others)


def query_cases(quick: bool) -> Iterator[Case]:
    road = torch.stack([lidar(18_000)[:, :3], lidar(18_000)[:, :3].flip(0)])
    sizes = [("B16 1024/512 r 0.2", shapes(16, 1024), 512, 0.2, 32), ("2 x 18k/2048 r 0.4", road, 2048, 0.4, 16)]
    if not quick:
        sizes.append(("2 x 18k/2048 r 4.8", road, 2048, 4.8, 16))
    for size, points, s, radius, g in sizes:
        centres = points.gather(1, furthest_point_sample(points, s)[..., None].expand(-1, -1, 3))
        arguments = (points, centres, radius, g)
        others = {"reference": lambda a=arguments: ball_query_reference.query(*a)}
        if importlib.util.find_spec("scipy"):
            others["scipy"] = lambda a=arguments: scipy_ball_query(*a[:3])
        yield Case("ball_query", size, lambda a=arguments: ball_query(*a), others)


def scipy_ball_query(points: Tensor, centres: Tensor, radius: float) -> None:
    """All neighbours through a k-d tree, unsorted and uncut: less work than ours has to do."""
    from scipy.spatial import cKDTree

    for cloud, at in zip(points.numpy(), centres.numpy(), strict=True):
        cKDTree(cloud).query_ball_point(at, radius)


def grouping_cases(quick: bool) -> Iterator[Case]:
    batch = 4 if quick else 16
    features = torch.randn(batch, 1024, 64, generator=generator()).requires_grad_()
    idx = torch.randint(0, 1024, (batch, 512, 32), generator=generator())
    ways = {
        "ours": group_points,
        "gather": lambda f, i: f.gather(1, i.view(len(f), -1, 1).expand(-1, -1, f.shape[2])).view(*i.shape, -1),
        "f[b, idx]": lambda f, i: f[torch.arange(len(f))[:, None, None], i],
    }
    forward = {name: lambda w=way: w(features.detach(), idx) for name, way in ways.items()}
    yield Case("group_points", f"B{batch} C64 forward", forward.pop("ours"), forward)
    both = {name: lambda w=way: w(features, idx).backward(upstream) for name, way in ways.items()}
    upstream = torch.randn(*idx.shape, 64, generator=generator())
    yield Case("group_points", f"B{batch} C64 with backward", both.pop("ours"), both)


def voxelize_cases(quick: bool) -> Iterator[Case]:
    n = 20_000 if quick else 120_000
    points = lidar(n)
    for label, grid, per_voxel, most in (("pillars", KITTI_PILLARS, 32, 40_000), ("voxels", KITTI_VOXELS, 5, 40_000)):
        arguments = (*grid, per_voxel, most)
        plain = (points, grid[0][:3], *grid[1:], per_voxel, most)
        others = {"reference": lambda a=plain: voxelize_reference.voxelize(*a)}
        if importlib.util.find_spec("spconv"):
            others["spconv"] = spconv_voxelize(points, *arguments)
        yield Case("voxelize", f"{n // 1000}k {label}", lambda a=arguments: voxelize(points.numpy(), *a), others)


def spconv_voxelize(points: Tensor, bounds, size, _grid, per_voxel: int, most: int) -> Callable[[], object]:
    from spconv.utils import Point2VoxelCPU3d

    generator_of_voxels = Point2VoxelCPU3d(size, bounds, points.shape[1], most, per_voxel)
    from cumm import tensorview

    return lambda: generator_of_voxels.point_to_voxel(tensorview.from_numpy(points.numpy()))


def box_cases(quick: bool) -> Iterator[Case]:
    a = boxes(256 if quick else 512)
    size = f"{len(a)} x {len(a)}"
    others = {"reference": lambda: iou_reference.boxes_iou_bev(a, a)}
    if importlib.util.find_spec("shapely"):
        others["shapely"] = lambda: shapely_overlap(a)
    yield Case("boxes_iou_bev", size, lambda: boxes_iou_bev(a, a), others)
    yield Case("boxes_iou3d", size, lambda: boxes_iou3d(a, a), {"reference": lambda: iou_reference.boxes_iou3d(a, a)})


def shapely_overlap(a: Tensor) -> None:
    """Areas of the pairs whose bounding boxes meet, found by a tree."""
    import shapely

    from pcdet.structures.boxes import box_corners

    polygons = shapely.polygons(box_corners(a.double()).numpy()[:, :4, :2])
    first, second = shapely.STRtree(polygons).query(polygons)
    shapely.area(shapely.intersection(polygons[first], polygons[second]))


def nms_cases(quick: bool) -> Iterator[Case]:
    for m in (512,) if quick else (512, 4096):
        candidates = boxes(m // 8).repeat(8, 1) + 0.3 * torch.randn(m, 7, generator=generator())
        candidates[:, 3:6] = candidates[:, 3:6].clamp(min=0.5)
        scores = torch.rand(m, generator=generator())
        ranked = candidates[scores.argsort(descending=True)]
        others = {"reference": lambda r=ranked: nms_reference.greedy(r, 0.1, len(r))}
        yield Case("nms_bev", f"{m}, IoU 0.1", lambda c=candidates, s=scores: nms_bev(c, s, 0.1), others)


def points_in_boxes_cases(quick: bool) -> Iterator[Case]:
    for n, m in ((16_000, 128),) if quick else ((16_000, 128), (120_000, 30)):
        points, them = lidar(n), boxes(m)
        for door, name in ((points_in_boxes_mask, "mask"), (points_in_boxes_index, "index")):
            reference = getattr(points_in_boxes_reference, name)
            others = {"reference": lambda f=reference, p=points, b=them: f(p, b, 0.0)}
            ours = lambda f=door, p=points, b=them: f(p, b)  # noqa: E731
            yield Case(f"points_in_boxes_{name}", f"{n // 1000}k x {m}", ours, others)


CASES = (
    sampling_cases,
    query_cases,
    grouping_cases,
    voxelize_cases,
    box_cases,
    nms_cases,
    points_in_boxes_cases,
)


def median_ms(call: Callable[[], object], repeats: int, budget: float) -> float:
    """Median of up to ``repeats`` calls, as many as ``budget`` seconds allow but at least one, after one to warm up."""
    call()
    times: list[float] = []
    while len(times) < repeats and sum(times) < budget:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measure(case: Case, quick: bool) -> dict:
    repeats, budget = (5, 0.5) if quick else (11, 2.0)
    ours = median_ms(case.ours, repeats, budget)
    others = {name: median_ms(call, repeats, budget) for name, call in case.others.items()}
    return {"operator": case.name, "size": case.size, "ours_ms": ours, "others_ms": others}


def line(result: dict) -> str:
    others = "   ".join(
        f"{name} {ms:9.2f} ms {ms / result['ours_ms']:7.1f}x" for name, ms in result["others_ms"].items()
    )
    return f"{result['operator']:<22} {result['size']:<22} {result['ours_ms']:9.2f} ms   {others}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats")
    parser.add_argument("--threads", type=int, help="threads to use (default: torch's)")
    parser.add_argument("--only", default="", help="measure only operators whose name holds this")
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file as well")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    machine = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    results = []
    for cases in CASES:
        for case in cases(arguments.quick):
            if arguments.only in case.name:
                results.append(measure(case, arguments.quick))
                print(line(results[-1]), flush=True)
    if arguments.json:
        write_json(arguments.json, {"machine": machine, "quick": arguments.quick, "results": results})
        print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
