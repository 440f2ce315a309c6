"""Which input site meets which output site under which kernel offset: computed once, used by many layers."""

from functools import cached_property

from torch import Tensor

from pcdet.layers.sparse.backend import backend
from pcdet.layers.sparse.sites import Geometry, Sites

Pairs = list[tuple[Tensor, Tensor]]  # for each kernel offset: input rows, output rows, both (P_k,) int64


class Rulebook:
    """The neighbour table of one convolution, from input sites to output sites.

    ``table[k, m]`` is the input row that output row ``m`` sees through kernel offset ``k``, or -1.
    """

    def __init__(self, geometry: Geometry, inputs: Sites, outputs: Sites, table: Tensor):
        self.geometry = geometry
        self.inputs = inputs
        self.outputs = outputs
        self.table = table  # (K, M) int32

    @cached_property
    def reverse(self) -> Tensor:
        """The same pairs seen from the input: ``reverse[k, n]`` is an output row, or -1. (K, N) int32"""
        if self.geometry.subm:  # if a sees b through an offset, b sees a through the opposite one
            return self.table.flip(0)
        return backend(self.table).reverse_table(self.table, len(self.inputs))

    @cached_property
    def pairs(self) -> Pairs:
        """For each offset the input rows and the output rows that meet, both (P_k,) int64, by output row."""
        return table_pairs(self.table)


def build_rulebook(inputs: Sites, geometry: Geometry) -> Rulebook:
    """The rulebook of a submanifold or strided convolution over ``inputs``.

    Output sites of a submanifold convolution are its input sites, in their order. Those of any other convolution are
    all sites whose receptive field holds an active input, sorted by (scene, z, y, x).
    """
    make = backend(inputs.indices)
    outputs = inputs if geometry.subm else make.output_sites(inputs, geometry)
    return Rulebook(geometry, inputs, outputs, make.neighbour_table(inputs, outputs, geometry))


def table_pairs(table: Tensor) -> Pairs:
    """For each offset the input rows and the output rows that meet, by output row."""
    pairs = []
    for neighbours in table:
        outputs = (neighbours >= 0).nonzero().squeeze(1)  # (P_k,)
        pairs.append((neighbours[outputs].long(), outputs))
    return pairs
