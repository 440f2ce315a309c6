"""Features of points, pooled over a grid of cells in each box."""

from pcdet.ops.roiaware_pool.door import RoiCells, dense_roi_cells, roi_cells, roiaware_pool3d

__all__ = ["RoiCells", "dense_roi_cells", "roi_cells", "roiaware_pool3d"]
