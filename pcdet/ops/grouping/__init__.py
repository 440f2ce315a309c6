"""Rows of features, gathered by index."""

from pcdet.ops.grouping.door import group_points, group_rows

__all__ = ["group_points", "group_rows"]
