"""Points in boxes as CPU kernels."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.points_in_boxes.reference import box_table
from pcdet.ops.threads import parallel_for

BOXES = 4  # boxes of a mask, or points of an index, that a piece of work covers
POINTS = 8192


@device_function
def _inside(x, y, z, table, m):
    # No branch: the loop over the points of a box becomes vector instructions.
    dx, dy, dz = x - table[m, 0], y - table[m, 1], z - table[m, 2]
    in_x = abs(dx * table[m, 6] + dy * table[m, 7]) <= table[m, 3]
    in_y = abs(dy * table[m, 6] - dx * table[m, 7]) <= table[m, 4]
    return in_x & in_y & (abs(dz) <= table[m, 5])


@Kernel
def _mask_rows(start, stop, x, y, z, table, out):
    for m in range(start, stop):
        row = out[m]
        for n in range(x.shape[0]):
            row[n] = _inside(x[n], y[n], z[n], table, m)


@Kernel
def _index_rows(start, stop, x, y, z, table, out):
    px, py, pz, found = x[start:stop], y[start:stop], z[start:stop], out[start:stop]
    found[:] = -1
    for m in range(table.shape[0] - 1, -1, -1):  # the lowest box writes last
        for n in range(px.shape[0]):
            found[n] = m if _inside(px[n], py[n], pz[n], table, m) else found[n]


def _columns(points: Tensor) -> np.ndarray:
    """(N, 3+) -> (3, N) float64, each axis contiguous."""
    return points[:, :3].double().t().contiguous().numpy()


def mask(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    out = np.empty((len(boxes), len(points)), dtype=np.bool_)
    if out.size:
        parallel_for(_mask_rows, len(boxes), *_columns(points), box_table(boxes, margin).numpy(), out, chunk=BOXES)
    return torch.from_numpy(out)


def index(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    out = np.empty(len(points), dtype=np.int64)
    parallel_for(_index_rows, len(out), *_columns(points), box_table(boxes, margin).numpy(), out, chunk=POINTS)
    return torch.from_numpy(out)
