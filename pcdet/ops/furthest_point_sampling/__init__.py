"""Furthest point sampling."""

from pcdet.ops.furthest_point_sampling.door import furthest_point_sample, furthest_point_sample_stack

__all__ = ["furthest_point_sample", "furthest_point_sample_stack"]
