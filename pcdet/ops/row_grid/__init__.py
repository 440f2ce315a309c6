"""Rows of features at their places in dense grids."""

from pcdet.ops.row_grid.door import rows_to_grid

__all__ = ["rows_to_grid"]
