"""Pictures of scenes, boxes, curves and confusion matrices, as PNG files, without a display."""

from pcdet.visual.bev import draw_bev
from pcdet.visual.confusion import draw_confusion
from pcdet.visual.curves import draw_curves
from pcdet.visual.image import draw_image_boxes, read_image

__all__ = ["draw_bev", "draw_confusion", "draw_curves", "draw_image_boxes", "read_image"]
