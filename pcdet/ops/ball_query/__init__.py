"""Neighbours within a radius."""

from pcdet.ops.ball_query.door import ball_query

__all__ = ["ball_query"]
