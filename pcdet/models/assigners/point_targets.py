"""Which points lie on objects, and where in them (Shi et al., "From Points to Parts", sec. 3.1)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pcdet.ops.points_in_boxes import points_in_boxes_index
from pcdet.structures.batch import scene_counts
from pcdet.structures.boxes import rotate_z
from pcdet.utils.constants import constant

MARGIN = 1e-5  # metres added to a box's sides along x and y, as on a GPU in OpenPCDet


class PointMatching(NamedTuple):
    """What each point belongs to."""

    labels: Tensor  # (N,) int64: 1-based class, 0 background, -1 not to be judged
    positives: Tensor  # (P,) int64, ascending rows of the labels above 0
    boxes: Tensor  # (P, 8) the labelled box that holds each of them


@torch.no_grad()
def match_points(
    point_coords: Tensor,  # (N, 4) scene, x, y, z
    gt_boxes: Tensor,  # (B, M, 8) padded with rows whose label is 0
    extra_width: Sequence[float],  # metres along dx, dy, dz
) -> PointMatching:
    """A point belongs to the first labelled box of its scene that holds it.

    Points that only the boxes enlarged by ``extra_width`` hold are not judged: labels are not that exact. Padding
    matches nothing. (In OpenPCDet enlarged padding is a box at the origin.)
    """
    scenes, slots = gt_boxes.shape[:2]
    labels = torch.zeros(len(point_coords), dtype=torch.int64, device=point_coords.device)
    owners = torch.zeros_like(labels)
    order = point_coords[:, 0].argsort(stable=True)
    counts = scene_counts(point_coords[:, 0], scenes).tolist()
    real = torch.where(gt_boxes[..., 7:] > 0, gt_boxes, torch.nan)  # what is not a number holds nothing
    for scene, rows in enumerate(order.split(counts) if slots else ()):  # (N_scene,)
        points = point_coords[rows, 1:4]
        owner = points_in_boxes_index(points, real[scene], MARGIN)  # (N_scene,)
        near = points_in_boxes_index(points, _enlarged(real[scene], extra_width), MARGIN) >= 0
        own = gt_boxes[scene, owner.clamp(min=0), 7].long()
        labels[rows] = torch.where(owner >= 0, own, -near.long())
        owners[rows] = owner + scene * slots
    positives = (labels > 0).nonzero()[:, 0]  # (P,)
    return PointMatching(labels, positives, gt_boxes.flatten(0, 1)[owners[positives]])


def part_locations(points: Tensor, boxes: Tensor) -> Tensor:
    """Where points lie in boxes that hold them: 0 to 1 along each side, 0.5 at the centre. (P, 3), (P, 7+) -> (P, 3)"""
    local = rotate_z(points - boxes[:, :3], -boxes[:, 6])
    return (local / boxes[:, 3:6].clamp(min=MARGIN) + 0.5).clamp(0, 1)


def _enlarged(boxes: Tensor, extra_width: Sequence[float]) -> Tensor:
    return torch.cat([boxes[:, :3], boxes[:, 3:6] + constant(extra_width, boxes), boxes[:, 6:]], dim=1)
