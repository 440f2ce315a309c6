"""Overlap of rotated boxes, from above and in space."""

from pcdet.ops.iou3d.door import (
    boxes_aligned_iou3d,
    boxes_aligned_overlap_bev,
    boxes_collide_bev,
    boxes_iou3d,
    boxes_iou3d_published,
    boxes_iou_bev,
    boxes_overlap_bev,
    boxes_overlap_published,
)

__all__ = [
    "boxes_aligned_iou3d",
    "boxes_aligned_overlap_bev",
    "boxes_collide_bev",
    "boxes_iou3d",
    "boxes_iou3d_published",
    "boxes_iou_bev",
    "boxes_overlap_bev",
    "boxes_overlap_published",
]
