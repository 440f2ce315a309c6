"""Points into voxels."""

from pcdet.ops.voxelize.door import Voxels, voxelize

__all__ = ["Voxels", "voxelize"]
