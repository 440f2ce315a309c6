"""Average precision in the LiDAR frame, for data without camera or calibration."""

from pcdet.evaluation.lidar.average_precision import evaluate, metric_names
from pcdet.evaluation.lidar.bands import Band, make_bands

__all__ = ["Band", "evaluate", "make_bands", "metric_names"]
