"""Benchmark cases of the operators on voxels and boxes: voxels, overlaps, suppression, pooling."""

import importlib.util
from collections.abc import Callable, Iterator

import torch
from op_inputs import KITTI_PILLARS, KITTI_VOXELS, Case, boxes, generator, lidar
from torch import Tensor

import pcdet.ops.iou3d.reference as iou_reference
import pcdet.ops.nms.reference as nms_reference
import pcdet.ops.points_in_boxes.reference as points_in_boxes_reference
import pcdet.ops.roiaware_pool.reference as roiaware_reference
import pcdet.ops.roipoint_pool.reference as roipoint_reference
import pcdet.ops.scatter.reference as scatter_reference
import pcdet.ops.voxelize.reference as voxelize_reference
from pcdet.ops.iou3d import boxes_aligned_iou3d, boxes_iou3d, boxes_iou_bev
from pcdet.ops.nms import nms_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index, points_in_boxes_mask
from pcdet.ops.roiaware_pool import roi_cells
from pcdet.ops.roipoint_pool import roipoint_query
from pcdet.ops.scatter import segment_max, segment_mean
from pcdet.ops.voxelize import voxelize


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


CASES = (
    voxelize_cases,
    box_cases,
    nms_cases,
    points_in_boxes_cases,
    segment_cases,
    roi_pool_cases,
)
