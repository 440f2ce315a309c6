"""RoI-aware pooling: which points fall into which cell of which box, and their features pooled by cell."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_boxes, require_columns, require_same_device
from pcdet.ops.scatter import pool_rows


class RoiCells(NamedTuple):
    """The cells of boxes that hold points, and the points of each."""

    point: Tensor  # (K,) int64 rows of the points, cell after cell, in order within one
    start: Tensor  # (S + 1,) int64: cell s holds the points from start[s] to start[s + 1], at least one
    cell: Tensor  # (S, 4) int64: row of the box, then the cell along its x, y, z; in ascending order

    def pool(self, features: Tensor, method: Literal["max", "avg"]) -> Tensor:
        """The features of the points of each cell. (N, C) -> (S, C), differentiable in ``features``."""
        if method not in ("max", "avg"):
            raise ValueError(f"method must be 'max' or 'avg', not {method!r}")
        return pool_rows(features, self.point, self.start, "max" if method == "max" else "mean")


def roi_cells(
    rois: Tensor,  # (M, 7+)
    points: Tensor,  # (N, 3+)
    out_size: int | Sequence[int],
    max_points: int,
    roi_counts: Tensor | None = None,  # (B,) boxes of each scene, one scene after the other
    point_counts: Tensor | None = None,  # (B,) points of each scene
) -> RoiCells:
    """Sort the points of each box into a grid of ``out_size`` cells along its x, y, z (Part-A2, sec. 3.3).

    A point on a face is inside, with a margin of 1e-5 m in the box's x and y; a point in several boxes counts for
    each. A cell keeps its first ``max_points`` - 1 points, as in the original, which stores the count in the place of
    one. Without counts all points and boxes are of one scene. Arithmetic is float64. No gradient flows.

    Raises ``ValueError`` for other shapes, two devices, sizes below 1 and, where they are on the CPU, counts that do
    not add up.
    """
    size = [out_size] * 3 if isinstance(out_size, int) else list(out_size)
    require_boxes("rois", rois)
    require_columns("points", points, "(N, 3+)", 3)
    if len(size) != 3 or min(size) < 1 or max_points < 2:
        raise ValueError(f"out_size ({out_size}) must be 1 or 3 numbers above 0, max_points ({max_points}) at least 2")
    if (roi_counts is None) != (point_counts is None):
        raise ValueError("roi_counts and point_counts are given together or not at all")
    roi_counts = _counts("roi_counts", roi_counts, rois)
    point_counts = _counts("point_counts", point_counts, points)
    require_same_device(rois=rois, points=points, roi_counts=roi_counts, point_counts=point_counts)
    if len(roi_counts) != len(point_counts):
        raise ValueError(f"roi_counts name {len(roi_counts)} scenes but point_counts {len(point_counts)}")
    scenes = (roi_counts, point_counts)
    point, start, filled = _filled_cells(rois.detach(), points.detach(), *scenes, size, max_points - 1)
    return RoiCells(point, start, torch.stack(torch.unravel_index(filled, (len(rois), *size)), dim=1))


def _counts(name: str, counts: Tensor | None, rows: Tensor) -> Tensor:
    if counts is None:
        return torch.full((1,), len(rows), dtype=torch.int64, device=rows.device)
    readable = counts.device.type == "cpu" and not torch.compiler.is_compiling()  # else the host would wait
    if readable and int(counts.sum()) != len(rows):
        raise ValueError(f"{name} add up to {int(counts.sum())}, but there are {len(rows)} rows")
    return counts.long()


def roiaware_pool3d(
    rois: Tensor,  # (M, 7+)
    points: Tensor,  # (N, 3+)
    features: Tensor,  # (N, C)
    out_size: int | Sequence[int],
    max_points: int,
    method: Literal["max", "avg"],
    roi_counts: Tensor | None = None,  # (B,)
    point_counts: Tensor | None = None,  # (B,)
) -> Tensor:
    """Pool the features of the points in each cell of each box (Part-A2, sec. 3.3). -> (M, X, Y, Z, C), 0 if empty.

    ``"max"`` takes the largest value of each channel, of equal ones the first point's; ``"avg"`` the mean. Where the
    same boxes and points are pooled twice, or only cells with points are wanted, call :func:`roi_cells` and pool with
    its result. Differentiable in ``features``. Cells, counts and errors as in :func:`roi_cells`.
    """
    require_columns("features", features, "(N, C)", 0)
    if len(features) != len(points):
        raise ValueError(f"there are {len(points)} points but {len(features)} rows of features")
    cells = roi_cells(rois, points, out_size, max_points, roi_counts, point_counts)
    return dense_roi_cells(cells.pool(features, method), cells.cell, len(rois), out_size)


def dense_roi_cells(
    pooled: Tensor,  # (S, C)
    cell: Tensor,  # (S, 4) box, x, y, z
    num_rois: int,
    out_size: int | Sequence[int],
) -> Tensor:
    """Write the features of cells into full grids. -> (M, X, Y, Z, C), 0 elsewhere."""
    x, y, z = [out_size] * 3 if isinstance(out_size, int) else out_size
    place = ((cell[:, 0] * x + cell[:, 1]) * y + cell[:, 2]) * z + cell[:, 3]  # (S,)
    dense = pooled.new_zeros(num_rois * x * y * z, pooled.shape[1]).index_copy(0, place, pooled)
    return dense.view(num_rois, x, y, z, pooled.shape[1])


@library.custom_op("pcdet::roiaware_cells", mutates_args=())
def _filled_cells(
    rois: Tensor, points: Tensor, roi_counts: Tensor, point_counts: Tensor, out_size: Sequence[int], kept: int
) -> tuple[Tensor, Tensor, Tensor]:
    implementation = backend("roiaware_pool", points.device.type)
    return implementation.filled_cells(rois, points, roi_counts, point_counts, out_size, kept)


@_filled_cells.register_fake
def _(rois, points, roi_counts, point_counts, out_size, kept):
    held, filled = (library.get_ctx().new_dynamic_size() for _ in range(2))
    return tuple(roi_counts.new_empty(size) for size in (held, filled + 1, filled))
