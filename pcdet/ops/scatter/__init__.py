"""Features pooled over groups of rows."""

from pcdet.ops.scatter.door import pool_rows, rows_by_segment, segment_max, segment_mean

__all__ = ["pool_rows", "rows_by_segment", "segment_max", "segment_mean"]
