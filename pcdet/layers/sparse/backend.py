"""Who computes a sparse convolution: the one place where this is decided.

On a GPU an installed library runs the whole layer (``library.py``). Otherwise the steps of a layer come from a module
with the functions ``output_sites, neighbour_table, reverse_table, product, product_gradient``: the compiled kernels on
a CPU, torch's sorts and matrix products elsewhere. ``reference.py`` has them in plain torch, for tests.
"""

import importlib
from types import ModuleType

from torch import Tensor


def backend(tensor: Tensor) -> ModuleType:
    """The module that serves the device of ``tensor``, imported when first needed: ``cpu`` imports numba."""
    name = "cpu" if tensor.device.type == "cpu" else "device"
    return importlib.import_module(f"pcdet.layers.sparse.{name}")
