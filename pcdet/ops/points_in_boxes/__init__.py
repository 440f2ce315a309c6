"""Which points lie in which boxes."""

from pcdet.ops.points_in_boxes.door import points_in_any_box, points_in_boxes_index, points_in_boxes_mask

__all__ = ["points_in_any_box", "points_in_boxes_index", "points_in_boxes_mask"]
