"""Points and the cells that they lie in, none of them dropped for want of room."""

from pcdet.ops.dynamic_voxels.door import DynamicVoxels, dynamic_voxels

__all__ = ["DynamicVoxels", "dynamic_voxels"]
