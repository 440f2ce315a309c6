"""Voxels near a place, found through their grid coordinates."""

from pcdet.ops.voxel_query.door import voxel_query

__all__ = ["voxel_query"]
