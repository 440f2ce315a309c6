"""Features at the active sites of a batch of grids."""

import math
from collections.abc import Sequence

from torch import Tensor

from pcdet.layers.sparse.rulebook import Rulebook
from pcdet.layers.sparse.sites import Sites
from pcdet.ops.row_grid import rows_to_grid


class SparseConvTensor:
    """A batch of sparse grids, under spconv's name and with its constructor.

    ``features`` (N, C) float, ``indices`` (N, 1 + D) int32 or int64 as scene, (z,) y, x, ``spatial_shape`` (D,) cells
    along (z,) y, x, ``batch_size`` scenes. No site may occur twice; N = 0 is legal. Raises ``ValueError`` that names
    the row where this does not hold.
    """

    def __init__(self, features: Tensor, indices: Tensor, spatial_shape: Sequence[int], batch_size: int):
        if features.ndim != 2 or len(features) != len(indices) or not features.is_floating_point():
            raise ValueError(
                f"features must be floats of shape (N, C) with N = {len(indices)} rows like the indices, "
                f"not {features.dtype} {tuple(features.shape)}"
            )
        if features.device != indices.device:
            raise ValueError(f"features are on {features.device} but indices on {indices.device}: move one of them")
        self.features = features
        self.sites = Sites.checked(indices, tuple(int(size) for size in spatial_shape), int(batch_size))
        self.rulebooks: dict[str, Rulebook] = {}  # by indice_key; shared by all tensors that come from this one
        self.gpu_cache: dict = {}  # what a GPU library keeps between layers; shared likewise

    @property
    def indices(self) -> Tensor:
        """(N, 1 + D) int32: scene, then (z,) y, x."""
        return self.sites.indices

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """(D,) cells along (z,) y, x."""
        return self.sites.spatial_shape

    @property
    def batch_size(self) -> int:
        """Number of scenes; one without sites counts too."""
        return self.sites.batch_size

    def replace_feature(self, features: Tensor) -> "SparseConvTensor":
        """A tensor with other features (N, C') at the same sites."""
        return self.at(self.sites, features)

    def at(self, sites: Sites, features: Tensor) -> "SparseConvTensor":
        """A tensor at other sites that belongs to the same network: it shares the rulebooks. Sites are trusted."""
        if len(features) != len(sites):
            raise ValueError(f"{len(features)} rows of features do not fit {len(sites)} sites")
        new = object.__new__(SparseConvTensor)
        new.features, new.sites = features, sites
        new.rulebooks, new.gpu_cache = self.rulebooks, self.gpu_cache
        return new

    def dense(self) -> Tensor:
        """The grid with zeros at inactive sites. (B, C, (Z,) Y, X)"""
        cells = math.prod(self.spatial_shape)
        scene, cell = self.indices[:, 0].long(), self.sites.keys % cells  # (N,) each
        grid = rows_to_grid(self.features, scene, cell, self.batch_size, cells)
        return grid.view(*grid.shape[:2], *self.spatial_shape)
