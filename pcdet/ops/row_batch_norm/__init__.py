"""Batch norm of rows."""

from pcdet.ops.row_batch_norm.door import row_batch_norm

__all__ = ["row_batch_norm"]
