"""Pictures of scenes, boxes, curves and confusion matrices as PNG files, scenes as a web page; without a display."""

from pcdet.visual.analysis import draw_analysis
from pcdet.visual.bev import draw_bev
from pcdet.visual.confusion import draw_confusion
from pcdet.visual.curves import draw_curves
from pcdet.visual.image import draw_image_boxes, read_image
from pcdet.visual.judged import SCORES, JudgedScene
from pcdet.visual.page import write_page
from pcdet.visual.rerun_log import log_to_rerun, require_rerun
from pcdet.visual.scaling import draw_scaling

__all__ = [
    "SCORES",
    "JudgedScene",
    "draw_analysis",
    "draw_bev",
    "draw_confusion",
    "draw_curves",
    "draw_image_boxes",
    "draw_scaling",
    "log_to_rerun",
    "read_image",
    "require_rerun",
    "write_page",
]
