"""Sparse convolution by an installed GPU library: the only file that imports spconv or spconv-triton."""

import importlib
import os
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
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

LIBRARIES, OWN = ("spconv", "spconv_triton"), "own"
NAMES = {"spconv": "spconv", "spconv_triton": "spconv-triton", OWN: "the layers of this package, in torch"}
_twins: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


def gpu_library(device: torch.device) -> ModuleType | None:
    """The library that convolves on a GPU, or ``None`` for our own layers; the log says which, and why.

    Where one is installed it is the fastest of all that are there, our layers among them, at a typical level of a
    backbone (``measure.py``), which is tried at the first convolution of a process. Ranks measure by themselves, and
    may choose differently; they exchange gradients, which that does not touch. Where
    ``torch.use_deterministic_algorithms`` asks for the same bits on every run nothing is measured: spconv, whose
    authors promise none, is passed over, and spconv-triton is taken before our layers. The environment variable
    ``PCDET_SPARSE`` names one of ``spconv``, ``spconv_triton`` and ``own`` to overrule this.

    Raises ``ValueError`` for another name, or one that is not installed.
    """
    return _choose(torch.are_deterministic_algorithms_enabled(), os.environ.get("PCDET_SPARSE", ""), device)


@lru_cache(maxsize=32)
def _choose(deterministic: bool, wanted: str, device: torch.device) -> ModuleType | None:
    if wanted and wanted not in (*LIBRARIES, OWN):
        raise ValueError(f"PCDET_SPARSE is '{wanted}'; it may be one of {', '.join((*LIBRARIES, OWN))}")
    present = {name: module for name in LIBRARIES if (module := _load(name)) is not None}
    if wanted in LIBRARIES and wanted not in present:
        raise ValueError(f"PCDET_SPARSE is '{wanted}', but that has no build for a GPU here: {HINT}")
    if wanted:
        name, reason = wanted, "PCDET_SPARSE says so"
    elif not present:
        name, reason = OWN, "no library for it is installed"
    elif deterministic:
        name = "spconv_triton" if "spconv_triton" in present else OWN
        reason = "it gives the same bits on every run, which torch.use_deterministic_algorithms asks for"
    else:
        name, reason = _fastest(present, device)
    message = f"sparse convolutions on this GPU are computed by {NAMES[name]}: {reason}"
    if not present:
        get_logger().warning("%s; faster: %s", message, HINT)
    else:
        get_logger().info("%s", message)
    return present.get(name)


def _fastest(present: Mapping[str, ModuleType], device: torch.device) -> tuple[str, str]:
    """The name of the fastest candidate, and the times of all in words."""
    from pcdet.layers.sparse.measure import milliseconds

    times = {OWN: milliseconds(None, device)}
    for name, module in present.items():
        try:
            times[name] = milliseconds(module, device)
        except RuntimeError as error:  # such as a build for other cards
            get_logger().warning("%s is installed but cannot run here: %s", NAMES[name], str(error).partition("\n")[0])
    listed = ", ".join(f"{NAMES[name]} {ms:.2f} ms" for name, ms in sorted(times.items(), key=lambda item: item[1]))
    return min(times, key=times.get), f"the fastest of those measured, {listed}"


def _load(name: str) -> ModuleType | None:
    """``spconv.pytorch`` if it has its CUDA part, or ``spconv_triton.pytorch``; ``None`` where it is not installed."""
    # Without this spconv's strided layers leave their sites in the order of a hash table, not of (b, z, y, x).
    os.environ.setdefault("SPCONV_USE_DIRECT_TABLE", "False")
    try:
        module = importlib.import_module(f"{name}.pytorch")
        if name == "spconv" and importlib.import_module("spconv.cppconstants").CPU_ONLY_BUILD:
            return None
    except ImportError:
        return None
    return module


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
