from pcdet.ops.voxel_query.reference import query

__all__ = ["query"]
