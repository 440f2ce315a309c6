"""The three nearest neighbours, and features interpolated from three rows."""

from pcdet.ops.three_nn.door import three_interpolate, three_nn_stack

__all__ = ["three_interpolate", "three_nn_stack"]
