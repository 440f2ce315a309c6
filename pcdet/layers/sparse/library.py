"""Sparse convolution by an installed GPU library: the only file that imports spconv or spconv-triton."""

import importlib
import os
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from torch import nn

from pcdet.layers.sparse.sites import Sites
from pcdet.layers.sparse.tensor import SparseConvTensor
from pcdet.utils.logging import get_logger

if TYPE_CHECKING:
    from pcdet.layers.sparse.modules import SparseConvolution

HINT = (
    "pip install 'pcdet[cu126]' (or the extra of your CUDA version: cu113 cu118 cu120 cu121 cu124) for spconv, "
    "or 'pcdet[gpu]' for spconv-triton"
)

_twins: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


@lru_cache(maxsize=1)
def gpu_library() -> ModuleType | None:
    """``spconv.pytorch`` if its CUDA build is installed, else ``spconv_triton.pytorch``, else ``None`` and a hint."""
    # Without this spconv's strided layers leave their sites in the order of a hash table, not of (b, z, y, x).
    os.environ.setdefault("SPCONV_USE_DIRECT_TABLE", "False")
    for name in ("spconv", "spconv_triton"):
        try:
            module = importlib.import_module(f"{name}.pytorch")
            if name == "spconv" and importlib.import_module("spconv.cppconstants").CPU_ONLY_BUILD:
                continue
        except ImportError:
            continue
        return module
    get_logger().warning("sparse convolutions run in plain torch on this GPU, which is slow; faster: %s", HINT)
    return None


def convolve(peer: ModuleType, layer: "SparseConvolution", x: SparseConvTensor) -> SparseConvTensor:
    """Run ``layer`` by the library ``peer``, which has spconv 2's interface; the parameters stay the layer's own."""
    twin = _twins.get(layer)
    if twin is None:
        twin = _twins[layer] = _make_twin(peer, layer)
    twin.weight, twin.bias = layer.weight, layer.bias
    twin.train(layer.training)
    given = peer.SparseConvTensor(x.features, x.indices, list(x.spatial_shape), x.batch_size)
    given.indice_dict = x.gpu_cache  # the library copies it
    made = twin(given)
    x.gpu_cache.update(made.indice_dict)
    if layer.geometry.subm:
        return x.replace_feature(made.features)
    sites = Sites(made.indices, tuple(int(size) for size in made.spatial_shape), x.batch_size)
    return x.at(sites, made.features)


def _make_twin(peer: ModuleType, layer: "SparseConvolution") -> nn.Module:
    g, kind = layer.geometry, "SparseConv"
    options = {"bias": layer.bias is not None, "indice_key": layer.indice_key}
    if layer.inverse:
        kind = "SparseInverseConv"
    elif g.subm:  # the library centres the kernel itself
        kind = "SubMConv"
        options["dilation"] = g.dilation
    else:
        options |= {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    make = getattr(peer, f"{kind}{layer.ndim}d")
    return make(layer.in_channels, layer.out_channels, g.kernel, **options)
