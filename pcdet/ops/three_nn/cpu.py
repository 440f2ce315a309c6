from pcdet.ops.three_nn.reference import three_nn_stack

__all__ = ["three_nn_stack"]
