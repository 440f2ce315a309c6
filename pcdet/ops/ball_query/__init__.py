"""Neighbours within a radius."""

from pcdet.ops.ball_query.door import ball_query, ball_query_stack

__all__ = ["ball_query", "ball_query_stack"]
