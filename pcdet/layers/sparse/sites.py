"""The active sites of a sparse grid, and the convolution geometry that maps one set of sites to another."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from torch import Tensor

AXES = {2: ("y", "x"), 3: ("z", "y", "x")}


@dataclass(frozen=True, eq=False)
class Sites:
    """Which cells of a batch of grids are active.

    Two sites objects are the same sites only if they are the same object, which makes it cheap to know whether a
    rulebook belongs to a tensor. :meth:`checked` is the door for data from outside; the constructor trusts its caller.
    """

    indices: Tensor  # (N, 1 + D) int32: scene, then (z,) y, x
    spatial_shape: tuple[int, ...]  # (D,) cells along (z,) y, x
    batch_size: int

    @classmethod
    def checked(cls, indices: Tensor, spatial_shape: tuple[int, ...], batch_size: int) -> "Sites":
        """Sites from data that nobody has looked at yet.

        Raises ``ValueError`` that names the row where an index lies outside the grid or repeats an earlier one, and
        where the shapes or types do not fit. int64 indices are accepted and stored as int32. On a GPU the rows are
        checked there without waiting: a bad one ends in a device-side assertion (``RuntimeError``) at a later step,
        which the same batch on the CPU turns into the error that names the row.
        """
        ndim = len(spatial_shape)
        if ndim not in AXES or min(spatial_shape) < 1 or batch_size < 0:
            raise ValueError(f"spatial_shape {spatial_shape} with batch_size {batch_size} is not a 2-D or 3-D grid")
        if batch_size * math.prod(spatial_shape) >= 2**62:
            raise ValueError(f"a grid of {batch_size} x {spatial_shape} has too many cells to number")
        if indices.ndim != 2 or indices.shape[1] != 1 + ndim:
            raise ValueError(
                f"indices must be (N, {1 + ndim}) for the grid {spatial_shape}, not {tuple(indices.shape)}"
            )
        if indices.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"indices must be int32 or int64, not {indices.dtype}")
        sites = cls(indices.to(torch.int32).contiguous(), spatial_shape, batch_size)
        if indices.device.type == "cpu":
            _require_inside(indices, spatial_shape, batch_size)
            _require_distinct(sites)
        else:
            _assert_on_device(sites)
        return sites

    def __len__(self) -> int:
        return self.indices.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.spatial_shape)

    @cached_property
    def keys(self) -> Tensor:
        """Number of each site's cell, counted over scenes, then z, y, x. (N,) int64"""
        key = self.indices[:, 0].long()
        for axis, size in enumerate(self.spatial_shape):
            key = key * size + self.indices[:, 1 + axis]
        return key

    @cached_property
    def ordered(self) -> tuple[Tensor, Tensor]:
        """The keys in ascending order, (N,) int64, and the row of each, (N,) int64."""
        readable = self.keys.device.type == "cpu"  # on a GPU a sort is faster than an answer for the host
        if readable and len(self) and bool((self.keys[1:] > self.keys[:-1]).all()):
            return self.keys, torch.arange(len(self), device=self.keys.device)
        return torch.sort(self.keys, stable=True)


@dataclass(frozen=True)
class Geometry:
    """Kernel, stride, padding and dilation of a convolution, each (D,), in the order (z,) y, x.

    ``subm`` marks a submanifold convolution (Graham et al., "3D Semantic Segmentation with Submanifold Sparse
    Convolutional Networks", sec. 3): its output sites are its input sites and the kernel is centred on them.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    subm: bool

    @property
    def volume(self) -> int:
        """Number of kernel offsets, K."""
        return math.prod(self.kernel)

    @property
    def starts(self) -> list[tuple[int, ...]]:
        """For each of the K offsets, in C order, what to add to ``output * stride`` to get the input cell."""
        offsets = product(*(range(size) for size in self.kernel))
        return [tuple(o * d - p for o, d, p in zip(k, self.dilation, self.padding, strict=True)) for k in offsets]

    def output_shape(self, spatial_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Grid of the output. Raises ``ValueError`` where the kernel is larger than the padded grid."""
        if self.subm:
            return spatial_shape
        axes = zip(spatial_shape, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        shape = tuple((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes)
        if min(shape) < 1:
            raise ValueError(
                f"a kernel of {self.kernel} with padding {self.padding} does not fit a grid {spatial_shape}"
            )
        return shape


def _assert_on_device(sites: Sites) -> None:
    """What the two functions below require, without the host reading anything."""
    for column, limit in enumerate((sites.batch_size, *sites.spatial_shape)):
        index = sites.indices[:, column]
        torch._assert_async(((index >= 0) & (index < limit)).all(), "a sparse tensor has indices outside its grid")
    keys = sites.ordered[0]
    torch._assert_async((keys[1:] != keys[:-1]).all(), "a sparse tensor has the same site twice")


def _require_inside(indices: Tensor, spatial_shape: tuple[int, ...], batch_size: int) -> None:
    if not len(indices):
        return
    limits = (batch_size, *spatial_shape)
    low, high = torch.aminmax(indices, dim=0)  # (1 + D,) each
    bounds = torch.stack((low, high)).tolist()
    if all(lo >= 0 and hi < limit for lo, hi, limit in zip(*bounds, limits, strict=True)):
        return
    outside = (indices < 0) | (indices >= indices.new_tensor(limits))
    row = int(outside.any(dim=1).nonzero()[0])
    names = ("scene", *AXES[len(spatial_shape)])
    raise ValueError(
        f"indices row {row} is {_site(indices[row])}, outside the grid {names} = {limits}: "
        "indices run from 0 to size - 1; drop the points outside the range before they become voxels"
    )


def _require_distinct(sites: Sites) -> None:
    keys, rows = sites.ordered
    same = keys[1:] == keys[:-1]
    if bool(same.any()):
        at = int(same.nonzero()[0])
        first, second = sorted(rows[at : at + 2].tolist())
        raise ValueError(
            f"indices rows {first} and {second} are the same site {_site(sites.indices[first])}: "
            "a sparse tensor holds each site once; merge the voxels first"
        )


def _site(row: Tensor) -> str:
    names = ("scene", *AXES[len(row) - 1])
    return "(" + ", ".join(f"{name} {value}" for name, value in zip(names, row.tolist(), strict=True)) + ")"
