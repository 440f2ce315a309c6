"""Sparse convolution layers under spconv's names, with spconv-2's parameters.

A weight has the shape (out, (kz,) ky, kx, in). A checkpoint of spconv 1, (kz, ky, kx, in, out), is converted when it
is loaded. Shapes tell the two apart except where out, in and the kernel are all the same number: such a weight is
taken as spconv 2's.
"""

import math
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor, nn

from pcdet.layers.sparse import library
from pcdet.layers.sparse.convolve import convolve
from pcdet.layers.sparse.rulebook import Rulebook, build_rulebook
from pcdet.layers.sparse.sites import Geometry
from pcdet.layers.sparse.tensor import SparseConvTensor

Size = int | Sequence[int]


class SparseModule(nn.Module):
    """A module that takes and returns a :class:`SparseConvTensor`."""


class SparseSequential(nn.Sequential, SparseModule):
    """A sequence in which sparse modules see the sparse tensor and all others its features (N, C)."""

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        for module in self:
            x = module(x) if isinstance(module, SparseModule) else x.replace_feature(module(x.features))
        return x


class SparseConvolution(SparseModule):
    """What all sparse convolutions share: the parameters, their names, and the choice of who computes.

    On a CPU the kernels of this package run; on a GPU an installed spconv or spconv-triton, else plain torch.
    """

    ndim: int
    subm = False
    inverse = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        *,
        bias: bool = True,
        indice_key: str | None = None,
    ):
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.indice_key = indice_key
        kernel, stride, padding, dilation = (self._per_axis(v) for v in (kernel_size, stride, padding, dilation))
        self.geometry = Geometry(kernel, stride, padding, dilation, self.subm)
        self.weight = nn.Parameter(torch.empty(out_channels, *kernel, in_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), like torch's dense convolutions."""
        bound = 1 / math.sqrt(self.geometry.volume * self.in_channels)
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)

    @torch.compiler.disable  # the sites are data: a compiled model runs this layer as it is
    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        self._require_input(x)
        return self.computed_by(library.gpu_library(x.features.device) if x.features.is_cuda else None, x)

    def computed_by(self, peer: ModuleType | None, x: SparseConvTensor) -> SparseConvTensor:
        """The convolution by the library ``peer``, or by this package's own kernels where it is ``None``."""
        if peer is not None:
            return library.convolve(peer, self, x)
        rulebook = self._rulebook(x)
        sites = rulebook.inputs if self.inverse else rulebook.outputs
        out = convolve(x.features, self.weight, rulebook, self.inverse)  # (M, out)
        return x.at(sites, out if self.bias is None else out + self.bias.to(out.dtype))

    def _rulebook(self, x: SparseConvTensor) -> Rulebook:
        rulebook = x.rulebooks.get(self.indice_key) if self.indice_key else None
        if rulebook is None:
            rulebook = build_rulebook(x.sites, self.geometry)
            if self.indice_key:
                x.rulebooks[self.indice_key] = rulebook
        elif rulebook.inputs is not x.sites or rulebook.geometry != self.geometry:
            raise ValueError(
                f"indice_key '{self.indice_key}' belongs to a convolution with {rulebook.geometry} over "
                f"{len(rulebook.inputs)} sites, but {self} meets {len(x.sites)} other sites: give it another key"
            )
        return rulebook

    def _require_input(self, x: SparseConvTensor) -> None:
        if x.sites.ndim != self.ndim or x.features.shape[1] != self.in_channels:
            raise ValueError(f"{self} cannot take {x.features.shape[1]} channels on the grid {x.spatial_shape}")
        if x.features.device != self.weight.device:
            raise ValueError(
                f"{self} is on {self.weight.device} but its input on {x.features.device}: move one of them"
            )

    def _per_axis(self, value: Size) -> tuple[int, ...]:
        values = (value,) * self.ndim if isinstance(value, int) else tuple(value)
        if len(values) != self.ndim:
            raise ValueError(f"{type(self).__name__} needs one number or {self.ndim}, not {value}")
        return values

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        name = prefix + "weight"
        theirs, ours = state_dict.get(name), tuple(self.weight.shape)
        spconv1 = (*ours[1:], ours[0])
        if theirs is not None and tuple(theirs.shape) == spconv1 != ours:
            state_dict[name] = theirs.permute(-1, *range(self.ndim + 1)).contiguous()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Channels and geometry, as they appear in a printed model."""
        g = self.geometry
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={g.kernel}, stride={g.stride}"
        return f"{text}, padding={g.padding}, dilation={g.dilation}, indice_key={self.indice_key!r}"


class SubMConvolution(SparseConvolution):
    """A convolution whose output sites are its input sites (Graham et al., 2018, sec. 3).

    The kernel is centred, so its sizes are odd; there is neither stride nor padding to choose.
    """

    subm = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        *,
        dilation: Size = 1,
        bias: bool = True,
        indice_key: str | None = None,
    ):
        kernel, spread = self._per_axis(kernel_size), self._per_axis(dilation)
        if any(size % 2 == 0 for size in kernel):
            raise ValueError(
                f"a submanifold convolution is centred on its site: kernel sizes must be odd, not {kernel}"
            )
        padding = tuple(size // 2 * step for size, step in zip(kernel, spread, strict=True))
        super().__init__(in_channels, out_channels, kernel, 1, padding, spread, bias=bias, indice_key=indice_key)


class SparseInverseConvolution(SparseConvolution):
    """The transpose of the strided convolution with the same ``indice_key``: it restores that one's input sites.

    The kernel size must be that of the strided convolution; stride, padding and dilation are taken from it.
    """

    inverse = True

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, indice_key: str, *, bias: bool = True):
        super().__init__(in_channels, out_channels, kernel_size, bias=bias, indice_key=indice_key)

    def _rulebook(self, x: SparseConvTensor) -> Rulebook:
        rulebook = x.rulebooks.get(self.indice_key)
        if rulebook is None or rulebook.outputs is not x.sites or rulebook.geometry.kernel != self.geometry.kernel:
            raise ValueError(
                f"{self} needs a convolution with the same indice_key and kernel before it that made its input's "
                f"sites; keys so far: {sorted(x.rulebooks)}"
            )
        return rulebook


class SparseConv2d(SparseConvolution):
    """Strided 2-D convolution; its output sites are all that see an active input, sorted by (scene, y, x)."""

    ndim = 2


class SparseConv3d(SparseConvolution):
    """Strided 3-D convolution; its output sites are all that see an active input, sorted by (scene, z, y, x)."""

    ndim = 3


class SubMConv2d(SubMConvolution):
    """Submanifold 2-D convolution."""

    ndim = 2


class SubMConv3d(SubMConvolution):
    """Submanifold 3-D convolution."""

    ndim = 3


class SparseInverseConv2d(SparseInverseConvolution):
    """Inverse of a strided 2-D convolution."""

    ndim = 2


class SparseInverseConv3d(SparseInverseConvolution):
    """Inverse of a strided 3-D convolution."""

    ndim = 3
