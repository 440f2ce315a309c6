"""Points in boxes as CPU kernels."""

import numpy as np
import torch
from torch import Tensor

from pcdet.ops.compile import Kernel, device_function
from pcdet.ops.points_in_boxes.reference import box_table
from pcdet.ops.threads import parallel_for

BOXES = 4  # boxes and points a piece of work covers
POINTS = 4096


@device_function
def _inside(x, y, z, box):
    # No branch: the loop over the points of a box becomes vector instructions.
    dx, dy, dz = x - box[0], y - box[1], z - box[2]
    in_x = abs(dx * box[6] + dy * box[7]) <= box[3]
    in_y = abs(dy * box[6] - dx * box[7]) <= box[4]
    return in_x & in_y & (abs(dz) <= box[5])


@Kernel
def _mask_rows(start, stop, x, y, z, table, out):
    for m in range(start, stop):
        box = table[m]
        row = out[m]
        for n in range(x.shape[0]):
            row[n] = _inside(x[n], y[n], z[n], box)


@Kernel
def _index_rows(start, stop, points, table, out):
    for n in range(start, stop):
        out[n] = -1
        for m in range(table.shape[0]):
            if _inside(points[n, 0], points[n, 1], points[n, 2], table[m]):
                out[n] = m
                break


def mask(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    out = np.empty((len(boxes), len(points)), dtype=np.bool_)
    if out.size:
        x, y, z = points[:, :3].double().t().contiguous().numpy()
        parallel_for(_mask_rows, len(boxes), x, y, z, box_table(boxes, margin).numpy(), out, chunk=BOXES)
    return torch.from_numpy(out)


def index(points: Tensor, boxes: Tensor, margin: float) -> Tensor:
    out = np.empty(len(points), dtype=np.int64)
    xyz = points[:, :3].double().contiguous().numpy()
    parallel_for(_index_rows, len(out), xyz, box_table(boxes, margin).numpy(), out, chunk=POINTS)
    return torch.from_numpy(out)
