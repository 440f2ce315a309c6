"""Points and features inside boxes."""

from pcdet.ops.roipoint_pool.door import roipoint_pool3d, roipoint_query

__all__ = ["roipoint_pool3d", "roipoint_query"]
