"""Sparse convolution: one facade over our CPU kernels, plain torch, and the GPU libraries."""

from pcdet.layers.sparse.modules import (
    SparseConv2d,
    SparseConv3d,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SparseModule,
    SparseSequential,
    SubMConv2d,
    SubMConv3d,
)
from pcdet.layers.sparse.tensor import SparseConvTensor

__all__ = [
    "SparseConv2d",
    "SparseConv3d",
    "SparseConvTensor",
    "SparseInverseConv2d",
    "SparseInverseConv3d",
    "SparseModule",
    "SparseSequential",
    "SubMConv2d",
    "SubMConv3d",
]
