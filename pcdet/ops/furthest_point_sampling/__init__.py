"""Furthest point sampling."""

from pcdet.ops.furthest_point_sampling.door import furthest_point_sample, furthest_point_sample_stack
from pcdet.ops.furthest_point_sampling.sectors import sector_furthest_point_sample

__all__ = ["furthest_point_sample", "furthest_point_sample_stack", "sector_furthest_point_sample"]
