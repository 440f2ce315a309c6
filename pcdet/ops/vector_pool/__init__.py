"""Neighbours of centres, interpolated at or pooled over a grid around each."""

from pcdet.ops.vector_pool.door import VoxelPool, local_three_nn, voxel_pool

__all__ = ["VoxelPool", "local_three_nn", "voxel_pool"]
