"""Benchmark cases of the operators on points: sampling, neighbours, interpolation, grouping, vector pool."""

import importlib.util
from collections.abc import Iterator

import torch
from op_inputs import KITTI_VOXELS, Case, generator, lidar, shapes
from torch import Tensor

import pcdet.ops.ball_query.reference as ball_query_reference
import pcdet.ops.furthest_point_sampling.reference as fps_reference
import pcdet.ops.grouping.reference as grouping_reference
import pcdet.ops.three_nn.reference as three_nn_reference
import pcdet.ops.vector_pool.reference as vector_pool_reference
import pcdet.ops.voxel_query.reference as voxel_query_reference
from pcdet.ops.ball_query import ball_query, ball_query_stack
from pcdet.ops.furthest_point_sampling import furthest_point_sample, sector_furthest_point_sample
from pcdet.ops.grouping import group_points
from pcdet.ops.grouping.door import sum_rows
from pcdet.ops.three_nn import three_interpolate, three_nn_stack
from pcdet.ops.vector_pool import local_three_nn, voxel_pool
from pcdet.ops.voxel_query import voxel_query


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
    row_cases,
    grouping_cases,
    vector_pool_cases,
)
