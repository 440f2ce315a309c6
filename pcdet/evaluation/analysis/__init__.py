"""Where a detector fails: by distance, points and occlusion, by class, by heading, by score."""

from pcdet.evaluation.analysis.analysis import Analysis, analyse
from pcdet.evaluation.analysis.objects import Objects, kitti_objects, lidar_objects
from pcdet.evaluation.analysis.outcomes import outcomes

__all__ = [
    "Analysis",
    "Objects",
    "analyse",
    "kitti_objects",
    "lidar_objects",
    "outcomes",
]
