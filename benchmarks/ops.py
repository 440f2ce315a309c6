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
import pcdet.ops.grouping.reference as grouping_reference
import pcdet.ops.iou3d.reference as iou_reference
import pcdet.ops.nms.reference as nms_reference
import pcdet.ops.points_in_boxes.reference as points_in_boxes_reference
import pcdet.ops.roiaware_pool.reference as roiaware_reference
import pcdet.ops.roipoint_pool.reference as roipoint_reference
import pcdet.ops.scatter.reference as scatter_reference
import pcdet.ops.three_nn.reference as three_nn_reference
import pcdet.ops.vector_pool.reference as vector_pool_reference
import pcdet.ops.voxel_query.reference as voxel_query_reference
import pcdet.ops.voxelize.reference as voxelize_reference
from pcdet.ops.ball_query import ball_query, ball_query_stack
from pcdet.ops.furthest_point_sampling import furthest_point_sample, sector_furthest_point_sample
from pcdet.ops.grouping import group_points
from pcdet.ops.grouping.door import sum_rows
from pcdet.ops.iou3d import boxes_aligned_iou3d, boxes_iou3d, boxes_iou_bev
from pcdet.ops.nms import nms_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index, points_in_boxes_mask
from pcdet.ops.roiaware_pool import roi_cells
from pcdet.ops.roipoint_pool import roipoint_query
from pcdet.ops.scatter import segment_max, segment_mean
from pcdet.ops.three_nn import three_interpolate, three_nn_stack
from pcdet.ops.vector_pool import local_three_nn, voxel_pool
from pcdet.ops.voxel_query import voxel_query
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


def sector_cases(quick: bool) -> Iterator[Case]:
    """Against one sector: how PV-RCNN++ samples its key points, against how PV-RCNN does."""
    n, wanted = (20_000, 1024) if quick else (60_000, 4096)
    points = lidar(n)
    others = {"no sectors": lambda: furthest_point_sample(points[None], wanted)}
    ours = lambda: sector_furthest_point_sample(points, wanted, 6)  # noqa: E731
    yield Case("sector_furthest_point_sample", f"{n // 1000}k -> {wanted}", ours, others)


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


def voxel_centres(n: int, size: float) -> Tensor:
    """(V, 3) centres of the voxels that hold points, in random order; they are twice as flat as they are wide."""
    edges = torch.tensor([size, size, 2 * size])
    cells = (lidar(n)[:, :3] / edges).floor().unique(dim=0)
    return (cells[torch.randperm(len(cells), generator=generator())] + 0.5) * edges


def roi_grids(at: Tensor, rois: int) -> Tensor:
    """(216 R, 3) grid points of boxes the size of cars around random ones of the places ``at``."""
    axis = torch.arange(6.0) / 6 - 0.5
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).view(-1, 3)  # (216, 3)
    chosen = at[torch.randint(0, len(at), (rois,), generator=generator())]
    return (chosen[:, None] + grid * torch.tensor([3.9, 1.6, 1.56])).flatten(0, 1)


def stacked_query_cases(quick: bool) -> Iterator[Case]:
    """Two equal scenes: PV-RCNN's key points among the voxels of a level, and its RoI grids among the key points."""
    n, s, rois = (20_000, 512, 16) if quick else (120_000, 2048, 128)
    cloud = lidar(n)[:, :3]
    keypoints = cloud[furthest_point_sample(cloud[None], s)[0]]
    sizes = [(0.05, 0.4), (0.1, 1.2), (0.2, 2.4), (0.4, 4.8)]
    levels = [(f"voxels {size}, r {radius}", voxel_centres(n, size), keypoints, radius) for size, radius in sizes]
    for size, points, centres, radius in (*levels, ("RoI grids, r 0.8", keypoints, roi_grids(keypoints, rois), 0.8)):
        counts, centre_counts = [len(points)] * 2, [len(centres)] * 2
        stacks = points.repeat(2, 1), torch.tensor(counts), centres.repeat(2, 1), torch.tensor(centre_counts)
        plain = (stacks[0], counts, stacks[2], centre_counts, radius, 16)
        others = {"reference": lambda a=plain: ball_query_reference.query_stack(*a)}
        if importlib.util.find_spec("scipy"):
            both = torch.stack([points] * 2), torch.stack([centres] * 2), radius
            others["scipy"] = lambda a=both: scipy_ball_query(*a)
        yield Case("ball_query_stack", size, lambda a=stacks, r=radius: ball_query_stack(*a, r, 16), others)


def voxel_query_cases(quick: bool) -> Iterator[Case]:
    """Voxel R-CNN's RoI grids among the voxels of a level, one scene."""
    n, rois = (20_000, 16) if quick else (120_000, 128)
    for size, shape, radius in ((0.1, (21, 800, 704), 0.4), (0.4, (5, 200, 176), 1.6)):
        xyz, edges = voxel_centres(n, size), torch.tensor([size, size, 2 * size])
        low = torch.tensor(KITTI_VOXELS[0][:3])
        cells = [((at - low) / edges).floor().long().flip(1) for at in (xyz, roi_grids(xyz, rois))]
        inside = ((cells[0] >= 0) & (cells[0] < torch.tensor(shape))).all(dim=1)
        voxels, places = (torch.nn.functional.pad(some, (1, 0)) for some in (cells[0][inside], cells[1]))
        given = (voxels, xyz[inside]), (roi_grids(xyz, rois), places, (4, 4, 4), radius, 16)
        others = {"reference": lambda g=given, s=shape: voxel_query_reference.query(*g[0], (1, *s), *g[1])}
        if importlib.util.find_spec("scipy"):
            all_near = given[0][1][None], given[1][0][None], radius
            others["scipy"] = lambda a=all_near: scipy_ball_query(*a)
        ours = lambda g=given, s=shape: voxel_query(*g[0], s, 1, *g[1])  # noqa: E731
        yield Case("voxel_query", f"voxels {size}, r {radius}", ours, others)


def interpolation_cases(quick: bool) -> Iterator[Case]:
    """PointRCNN's last feature propagation: all points of a scene from the first level's centres."""
    n, m, channels = (4096, 1024, 64) if quick else (16_384, 4096, 256)
    unknown = lidar(n)[:, :3].contiguous()
    known = unknown[furthest_point_sample(unknown[None], m)[0]]
    counts = torch.tensor([n]), torch.tensor([m])
    others = {"reference": lambda: three_nn_reference.three_nn_stack(unknown, [n], known, [m])}
    if importlib.util.find_spec("scipy"):
        others["scipy"] = lambda: scipy_three_nn(unknown, known)
    yield Case("three_nn_stack", f"{n} of {m}", lambda: three_nn_stack(unknown, counts[0], known, counts[1]), others)
    features = torch.randn(m, channels, generator=generator()).requires_grad_()
    weight, upstream = torch.rand(n, 3, generator=generator()), torch.randn(n, channels, generator=generator())
    index = three_nn_stack(unknown, counts[0], known, counts[1])[1]
    ways = {"ours": three_interpolate, "reference": three_nn_reference.interpolate}
    both = {name: lambda w=way: w(features, index, weight).backward(upstream) for name, way in ways.items()}
    yield Case("three_interpolate", f"C{channels} with backward", both.pop("ours"), both)


def scipy_three_nn(unknown: Tensor, known: Tensor) -> None:
    from scipy.spatial import cKDTree

    cKDTree(known.numpy()).query(unknown.numpy(), 3, workers=torch.get_num_threads())


def row_cases(quick: bool) -> Iterator[Case]:
    """The gradient of the key points' features that PV-RCNN's RoI grids gather."""
    k = 216 * 16 * (16 if quick else 128)
    values, index = torch.randn(k, 64, generator=generator()), torch.randint(0, 4096, (k,), generator=generator())
    others = {
        "reference": lambda: grouping_reference.sum_rows(values, index, 4096),
        "scatter_add": lambda: values.new_zeros(4096, 64).scatter_add_(0, index[:, None].expand(-1, 64), values),
    }
    yield Case("sum_rows", f"{k // 1000}k to 4096, C64", lambda: sum_rows(values, index, 4096), others)


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
    pairs = (boxes(4096), boxes(4096).roll(1, 1))
    others_of_rows = {"reference": lambda: iou_reference.boxes_aligned_iou3d(*pairs)}
    yield Case("boxes_aligned_iou3d", "4096 rows", lambda: boxes_aligned_iou3d(*pairs), others_of_rows)
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


def segment_cases(quick: bool) -> Iterator[Case]:
    n, segments, channels = (20_000, 8_000, 32) if quick else (120_000, 30_000, 64)
    features = torch.randn(n, channels, generator=generator())
    segment = torch.randint(0, segments, (n,), generator=generator())
    upstream = torch.randn(segments, channels, generator=generator())
    size = f"{n // 1000}k x {channels} -> {segments // 1000}k"
    for door, name, torch_name in ((segment_max, "max", "amax"), (segment_mean, "mean", "mean")):
        pool = getattr(scatter_reference, f"pool_{name}")
        others = {
            "reference": lambda p=pool: p(features, *scatter_reference.rows_by_segment(segment, segments)),
            "scatter_reduce": lambda t=torch_name: torch_pool(features, segment, segments, t),
        }
        yield Case(f"segment_{name}", size, lambda d=door: d(features, segment, segments), others)
        leaf = features.clone().requires_grad_()
        both = {"scatter_reduce": lambda x=leaf, t=torch_name: torch_pool(x, segment, segments, t).backward(upstream)}
        ours = lambda x=leaf, d=door: d(x, segment, segments).backward(upstream)  # noqa: E731
        yield Case(f"segment_{name}", "  with backward", ours, both)


def torch_pool(features: Tensor, segment: Tensor, segments: int, method: str) -> Tensor:
    """Torch's own way; its gradient of a maximum is shared among ties."""
    index = segment[:, None].expand_as(features)
    return features.new_zeros(segments, features.shape[1]).scatter_reduce(
        0, index, features, method, include_self=False
    )


def roi_pool_cases(quick: bool) -> Iterator[Case]:
    n, m = 16_000, 128
    points, proposals = lidar(n)[:, :3].contiguous(), boxes(m)
    proposals[:, :3] = points[torch.randint(0, n, (m,), generator=generator())]
    arguments = (proposals, points, [m], [n], [12, 12, 12], 127)
    others = {"reference": lambda: roiaware_reference.assign(*arguments)}
    yield Case("roi_cells", "16k x 128, 12^3", lambda: roi_cells(proposals, points, 12, 128), others)
    cells = roi_cells(proposals, points, 12, 128)
    features = torch.randn(n, 16 if quick else 128, generator=generator())
    others = {"reference": lambda: scatter_reference.pool_max(features, cells.point, cells.start)}
    size = f"{len(cells.cell) // 1000}k cells, C{features.shape[1]}"
    yield Case("pool of roi_cells", size, lambda: cells.pool(features, "max"), others)
    scene, several = points[None], proposals[None]
    others = {"reference": lambda: roipoint_reference.query(scene, several, 512)}
    yield Case("roipoint_query", "16k x 128, 512 each", lambda: roipoint_query(scene, several, 0.0, 512), others)


def vector_pool_cases(quick: bool) -> Iterator[Case]:
    n, m = (8_000, 512) if quick else (30_000, 4096)
    support, centres = lidar(n)[:, :3].contiguous(), lidar(n)[torch.randperm(n, generator=generator())[:m], :3]
    counts, centre_counts = torch.tensor([n]), torch.tensor([m])
    for radius in (0.8, 2.4) if quick else (0.8, 2.4, 9.6):
        around = centres[:, None] + radius * (torch.rand(m, 27, 3, generator=generator()) - 0.5)
        scenes = (support, counts, centres, around, centre_counts, radius)
        plain = (support, [n], centres, [m], around, radius, 1000, False)
        others = {"reference": lambda a=plain: vector_pool_reference.three_nn(*a)} if m < 1000 or radius < 1 else {}
        size = f"{n // 1000}k/{m} x 27, r {radius}"
        yield Case("local_three_nn", size, lambda a=scenes: local_three_nn(*a), others)
    features, shape = torch.randn(n, 32, generator=generator()), (3, 3, 3)
    scenes = (support, counts, features, centres, centre_counts, shape, 1.6)
    for method, members in (("first", "first_members"), ("avg", "all_members")):
        plain = (support, [n], centres, [m], shape, 1.6, -1, False)
        others = {"reference": lambda a=plain, f=members: getattr(vector_pool_reference, f)(*a)}
        ours = lambda a=scenes, k=method: voxel_pool(*a, method=k)  # noqa: E731
        yield Case(f"voxel_pool {method}", f"{n // 1000}k/{m} x 27, r 1.6", ours, others)


CASES = (
    sampling_cases,
    sector_cases,
    query_cases,
    stacked_query_cases,
    voxel_query_cases,
    interpolation_cases,
    grouping_cases,
    row_cases,
    voxelize_cases,
    box_cases,
    nms_cases,
    points_in_boxes_cases,
    segment_cases,
    roi_pool_cases,
    vector_pool_cases,
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
