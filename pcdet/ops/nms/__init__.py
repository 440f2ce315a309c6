"""Non-maximum suppression of boxes seen from above."""

from pcdet.ops.nms.circle import nms_circle
from pcdet.ops.nms.door import nms_bev, nms_groups, nms_normal_bev

__all__ = ["nms_bev", "nms_circle", "nms_groups", "nms_normal_bev"]
