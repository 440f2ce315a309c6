"""Vector pooling as CPU kernels: neighbours from a grid seen from above, or from a scan where a cube holds many."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.bev_grid import BevGrid, bev_grid
from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.threads import parallel_for

CENTRES = 64  # centres a piece of work covers
SLACK = 1.000001  # differences are rounded to float32 before they are compared
CUBE_SHARE = 4 / 9  # part of the 3 x 3 cells that the cube fills


class Search(NamedTuple):
    """What is sought in one scene."""

    points: np.ndarray  # (N, 3) float32
    centres: np.ndarray  # (M, 3) float32
    reach: np.float32  # metres
    ball: bool
    cap: int  # the first so many neighbours by index, all if -1


class Cells(NamedTuple):
    """The grid around each centre: how many cells there are along x, y, z, and their sizes in metres, float32."""

    x: int
    y: int
    z: int
    x_step: np.float32
    y_step: np.float32
    z_step: np.float32


@device_function
def _is_near(x, y, z, reach, ball):
    """Whether an offset lies in the cube or the ball, borders included; False for a NaN."""
    if ball:
        return x * x + y * y + z * z <= reach * reach
    return (abs(x) <= reach) & (abs(y) <= reach) & (abs(z) <= reach)


@device_function
def _cell_range(value, reach, low, size, count):
    """The first and the last cell along one axis that ``value`` +- ``reach`` meets; none for a NaN."""
    first, last = np.floor((value - reach - low) / size), np.floor((value + reach - low) / size)
    if not (last >= 0.0 and first < count):
        return 0, -1
    return np.int64(max(first, 0.0)), np.int64(min(last, count - 1.0))


@device_function
def _scan(search, x, y, z, found):
    points, count = search.points, 0
    for n in range(points.shape[0]):
        if _is_near(points[n, 0] - x, points[n, 1] - y, points[n, 2] - z, search.reach, search.ball):
            found[count] = n
            count += 1
            if count == search.cap:
                break
    return count


@device_function
def _search_cells(search, grid, i0, i1, j0, j1, x, y, z, found):
    order, xyz, count = grid.order, grid.xyz, 0
    for i in range(i0, i1 + 1):
        row = i * grid.dims[1]
        for place in range(grid.start[row + j0], grid.start[row + j1 + 1]):
            found[count] = order[place]  # overwritten unless counted: no branch to predict
            count += _is_near(xyz[place, 0] - x, xyz[place, 1] - y, xyz[place, 2] - z, search.reach, search.ball)
    return count


@device_function
def _neighbours(search, grid, m, found):
    """Write the neighbours of centre m to ``found``, in any order; returns how many."""
    x, y, z = search.centres[m, 0], search.centres[m, 1], search.centres[m, 2]
    reach, cap = np.float64(search.reach) * SLACK, search.cap
    i0, i1 = _cell_range(x, reach, grid.low[0], grid.size, grid.dims[0])
    j0, j1 = _cell_range(y, reach, grid.low[1], grid.size, grid.dims[1])
    nearby = 0
    if j0 <= j1:
        for i in range(i0, i1 + 1):
            nearby += grid.start[i * grid.dims[1] + j1 + 1] - grid.start[i * grid.dims[1] + j0]
    if nearby == 0:
        return 0
    # A scan is expected to visit N * cap / hits points, the cells hold ``nearby``.
    if 0 < cap and search.points.shape[0] * cap < nearby * nearby * CUBE_SHARE:
        return _scan(search, x, y, z, found)
    count = _search_cells(search, grid, i0, i1, j0, j1, x, y, z, found)
    if 0 < cap < count:
        found[:cap] = np.partition(found[:count], cap - 1)[:cap]
        return cap
    return count


@device_function
def _three_nearest(x, y, z, near_x, near_y, near_z, found, squared, out, rows):
    """Write the three of the points ``near`` (rows ``found``) that are nearest to a place, of equals the lowest."""
    d0 = d1 = d2 = np.float32(np.inf)
    r0 = r1 = r2 = np.int64(-1)
    for k in range(near_x.shape[0]):  # without a branch, so that it becomes vector instructions
        dx, dy, dz = x - near_x[k], y - near_y[k], z - near_z[k]
        squared[k] = dx * dx + dy * dy + dz * dz
    for k in range(near_x.shape[0]):
        d, n = squared[k], found[k]
        if not (d < d2 or (d == d2 and n < r2)):  # nearly all points stop here, and a NaN
            continue
        if d < d0 or (d == d0 and n < r0):
            d2, r2, d1, r1, d0, r0 = d1, r1, d0, r0, d, n
        elif d < d1 or (d == d1 and n < r1):
            d2, r2, d1, r1 = d1, r1, d, n
        else:
            d2, r2 = d, n
    out[0], rows[0] = d0, r0
    out[1], rows[1] = (d1, r1) if r1 >= 0 else (d0, r0)
    out[2], rows[2] = (d2, r2) if r2 >= 0 else (d0, r0)


@Kernel
def _three_nn(first, last, search, grid, grid_centres, squared, index):
    found = np.empty(search.points.shape[0] + 1, dtype=np.int64)
    near, distances = np.empty((3, search.cap), dtype=np.float32), np.empty(search.cap, dtype=np.float32)
    for m in range(first, last):
        count = _neighbours(search, grid, m, found)
        for k in range(count):
            for axis in range(3):
                near[axis, k] = search.points[found[k], axis]
        near_x, near_y, near_z = near[0, :count], near[1, :count], near[2, :count]
        for t in range(grid_centres.shape[1]):
            x, y, z = grid_centres[m, t, 0], grid_centres[m, t, 1], grid_centres[m, t, 2]
            _three_nearest(x, y, z, near_x, near_y, near_z, found, distances, squared[m, t], index[m, t])


@device_function
def _cell(points, n, centres, m, reach, cells):
    """The flat cell of a point in the grid around centre m, clipped as a whole."""
    x = np.floor((points[n, 0] - centres[m, 0] + reach) / cells.x_step)
    y = np.floor((points[n, 1] - centres[m, 1] + reach) / cells.y_step)
    z = np.floor((points[n, 2] - centres[m, 2] + reach) / cells.z_step)
    flat = (np.int64(x) * cells.y + np.int64(y)) * cells.z + np.int64(z)
    return min(max(flat, 0), cells.x * cells.y * cells.z - 1)


@Kernel
def _first_of_cells(first, last, search, grid, cells, limit, index):
    """The lowest row in each cell, N in an empty one; only the ``limit`` lowest of a centre if that is above 0."""
    points, centres, reach = search.points, search.centres, search.reach
    found, none = np.empty(points.shape[0] + 1, dtype=np.int64), points.shape[0]
    for m in range(first, last):
        index[m] = none
        count = _neighbours(search, grid, m, found)
        for k in range(count):
            cell = _cell(points, found[k], centres, m, reach, cells)
            index[m, cell] = min(index[m, cell], found[k])
        if 0 < limit < index.shape[1]:
            latest = np.sort(index[m])[limit - 1]
            for cell in range(index.shape[1]):
                if index[m, cell] > latest:
                    index[m, cell] = none


@Kernel
def _count_neighbours(first, last, search, grid, counts):
    found = np.empty(search.points.shape[0] + 1, dtype=np.int64)
    for m in range(first, last):
        counts[m] = _neighbours(search, grid, m, found)


@Kernel
def _members_of_cells(first, last, search, grid, cells, begins, rows, held):
    """Write the neighbours of centre m from ``rows[begins[m]]`` on, by cell, and how many each cell holds."""
    points, centres, reach = search.points, search.centres, search.reach
    found = np.empty(points.shape[0] + 1, dtype=np.int64)
    place = np.empty(held.shape[1] + 1, dtype=np.int64)
    for m in range(first, last):
        ascending = np.sort(found[: _neighbours(search, grid, m, found)])
        place[:] = 0
        for n in ascending:
            place[_cell(points, n, centres, m, reach, cells) + 1] += 1
        for cell in range(held.shape[1]):
            held[m, cell] = place[cell + 1]
            place[cell + 1] += place[cell]
        for n in ascending:
            cell = _cell(points, n, centres, m, reach, cells)
            rows[begins[m] + place[cell]] = n
            place[cell] += 1


def _over_scenes(
    serve: Callable[..., None],
    support: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
) -> None:
    """Call ``serve(search, grid, rows, places)`` for each scene: slices of the support points and of the centres."""
    cloud, places = support.contiguous().numpy(), centres.contiguous().numpy()
    first_row, first_place = 0, 0
    for number, wanted in zip(counts, centre_counts, strict=True):
        rows, served = slice(first_row, first_row + number), slice(first_place, first_place + wanted)
        if wanted:
            search = Search(cloud[rows], places[served], np.float32(radius), ball, cap)
            serve(search, bev_grid(search.points, radius), rows, served)
        first_row, first_place = rows.stop, served.stop


def three_nn(
    support: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    grid_centres: Tensor,
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """-> squared distances (M, T, 3), rows (M, T, 3) int64."""
    at = grid_centres.contiguous().numpy()
    squared, index = np.empty(at.shape, dtype=np.float32), np.empty(at.shape, dtype=np.int64)

    def serve(search: Search, grid: BevGrid, rows: slice, served: slice) -> None:
        out = (squared[served], index[served])
        parallel_for(_three_nn, len(search.centres), search, grid, at[served], *out, chunk=CENTRES)
        out[1][out[1] >= 0] += rows.start

    _over_scenes(serve, support, counts, centres, centre_counts, radius, cap, ball)
    return torch.from_numpy(squared), torch.from_numpy(index)


def _cells(num_voxels: Sequence[int], radius: float) -> Cells:
    x, y, z = num_voxels
    return Cells(x, y, z, *(np.float32(radius) * 2 / np.array(num_voxels, dtype=np.float32)))


def first_members(
    support: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    num_voxels: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """The first row of each cell, of the ``cap`` cells that are filled first. -> (K,), starts (M * T + 1,)."""
    cells = _cells(num_voxels, radius)
    index = np.empty((len(centres), math.prod(num_voxels)), dtype=np.int64)

    def serve(search: Search, grid: BevGrid, rows: slice, served: slice) -> None:
        out = index[served]
        parallel_for(_first_of_cells, len(out), search, grid, cells, cap, out, chunk=CENTRES)
        out[:] = np.where(out < len(search.points), out + rows.start, -1)

    _over_scenes(serve, support, counts, centres, centre_counts, radius, -1, ball)
    return torch.from_numpy(index[index >= 0]), _starts(index >= 0)


def all_members(
    support: Tensor,
    counts: Sequence[int],
    centres: Tensor,
    centre_counts: Sequence[int],
    num_voxels: Sequence[int],
    radius: float,
    cap: int,
    ball: bool,
) -> tuple[Tensor, Tensor]:
    """The rows of the first ``cap`` neighbours of each centre (all if -1), by cell. -> (K,), starts (M * T + 1,)."""
    cells = _cells(num_voxels, radius)
    held = np.empty((len(centres), math.prod(num_voxels)), dtype=np.int64)
    parts = [np.empty(0, dtype=np.int64)]

    def serve(search: Search, grid: BevGrid, rows: slice, served: slice) -> None:
        number = np.empty(len(search.centres), dtype=np.int64)
        parallel_for(_count_neighbours, len(number), search, grid, number, chunk=CENTRES)
        found, out = np.empty(number.sum(), dtype=np.int64), held[served]
        begins = number.cumsum() - number
        parallel_for(_members_of_cells, len(out), search, grid, cells, begins, found, out, chunk=CENTRES)
        parts.append(found + rows.start)

    _over_scenes(serve, support, counts, centres, centre_counts, radius, cap, ball)
    return torch.from_numpy(np.concatenate(parts)), _starts(held)


def _starts(held: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(1, dtype=np.int64), held.cumsum(dtype=np.int64)]))
