"""Vector pooling as CPU kernels: neighbours from a grid seen from above, or from a scan where a cube holds many."""

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
    """The grid around each centre."""

    shape: np.ndarray  # (3,) int64
    steps: np.ndarray  # (3,) float32 sizes of a cell in metres


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
def _take(best, rows, value, n):
    """Insert (value, n) into the three smallest, ordered by value and then by row."""
    k = 2
    while k > 0 and (value < best[k - 1] or (value == best[k - 1] and n < rows[k - 1])):
        best[k], rows[k] = best[k - 1], rows[k - 1]
        k -= 1
    best[k], rows[k] = value, n


@device_function
def _three_nearest(place, near, found, count, squared, best, rows):
    """The three of ``count`` points ``near``, rows ``found``, that are nearest to a place."""
    x, y, z = place
    for k in range(count):  # apart from the comparison, so that it becomes vector instructions
        dx, dy, dz = x - near[0, k], y - near[1, k], z - near[2, k]
        squared[k] = dx * dx + dy * dy + dz * dz
    best[:], rows[:] = np.inf, -1
    for k in range(count):
        if squared[k] <= best[2] and (squared[k] < best[2] or found[k] < rows[2]):
            _take(best, rows, squared[k], found[k])


@Kernel
def _three_nn(first, last, search, grid, grid_centres, distances, index):
    points, found = search.points, np.empty(search.points.shape[0] + 1, dtype=np.int64)
    near, squared = np.empty((3, search.cap), dtype=np.float32), np.empty(search.cap, dtype=np.float32)
    best, rows = np.empty(3, dtype=np.float32), np.empty(3, dtype=np.int64)
    for m in range(first, last):
        count = _neighbours(search, grid, m, found)
        for k in range(count):
            for axis in range(3):
                near[axis, k] = points[found[k], axis]
        for t in range(grid_centres.shape[1]):
            place = (grid_centres[m, t, 0], grid_centres[m, t, 1], grid_centres[m, t, 2])
            _three_nearest(place, near, found, count, squared, best, rows)
            for k in range(3):
                held = k if rows[k] >= 0 else 0
                distances[m, t, k], index[m, t, k] = best[held], rows[held]


@device_function
def _cell(search, cells, m, n):
    flat = 0
    for axis in range(3):
        offset = search.points[n, axis] - search.centres[m, axis]
        flat = flat * cells.shape[axis] + np.int64(np.floor((offset + search.reach) / cells.steps[axis]))
    return min(max(flat, 0), cells.shape[0] * cells.shape[1] * cells.shape[2] - 1)


@Kernel
def _first_of_cells(first, last, search, grid, cells, limit, index):
    """The lowest row in each cell, N in an empty one; only the ``limit`` lowest of a centre if that is above 0."""
    found, none = np.empty(search.points.shape[0] + 1, dtype=np.int64), search.points.shape[0]
    for m in range(first, last):
        index[m] = none
        count = _neighbours(search, grid, m, found)
        for k in range(count):
            cell = _cell(search, cells, m, found[k])
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
    found = np.empty(search.points.shape[0] + 1, dtype=np.int64)
    place = np.empty(held.shape[1] + 1, dtype=np.int64)
    for m in range(first, last):
        ascending = np.sort(found[: _neighbours(search, grid, m, found)])
        place[:] = 0
        for n in ascending:
            place[_cell(search, cells, m, n) + 1] += 1
        for cell in range(held.shape[1]):
            held[m, cell] = place[cell + 1]
            place[cell + 1] += place[cell]
        for n in ascending:
            cell = _cell(search, cells, m, n)
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
    distances, index = np.empty(at.shape, dtype=np.float32), np.empty(at.shape, dtype=np.int64)

    def serve(search: Search, grid: BevGrid, rows: slice, served: slice) -> None:
        out = (distances[served], index[served])
        parallel_for(_three_nn, len(search.centres), search, grid, at[served], *out, chunk=CENTRES)
        out[1][out[1] >= 0] += rows.start

    _over_scenes(serve, support, counts, centres, centre_counts, radius, cap, ball)
    return torch.from_numpy(distances), torch.from_numpy(index)


def _cells(num_voxels: Sequence[int], radius: float) -> Cells:
    steps = np.float32(radius) * 2 / np.array(num_voxels, dtype=np.float32)
    return Cells(np.array(num_voxels, dtype=np.int64), steps)


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
    index = np.empty((len(centres), int(cells.shape.prod())), dtype=np.int64)

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
    held = np.empty((len(centres), int(cells.shape.prod())), dtype=np.int64)
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
