"""What the doors of all operators share: shape checks, and the choice of an implementation.

A door checks its arguments and calls an operator registered with torch ``pcdet::...``, so that ``torch.compile``,
``torch.export`` and fake tensors see one opaque step instead of a numba kernel or a loop. That operator asks
:func:`backend` for the module which serves the device. NumPy arrays go to the module without that detour.
"""

import functools
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from pcdet.utils.logging import get_logger

Array = np.ndarray | Tensor
MODULES = {"cpu": "cpu", "cuda": "triton"}  # device type -> module with kernels for it


def require_columns(name: str, value: Array, shape: str, columns: int) -> None:
    """Raise ``ValueError`` unless ``value`` has as many dimensions as ``shape`` and at least ``columns`` columns.

    ``shape`` is what the message shows, such as ``"(B, N, 3+)"``; its last part is the columns.
    """
    if value.ndim != shape.count(",") + 1 or value.shape[-1] < columns:
        raise ValueError(f"{name} must have the shape {shape}, not {tuple(value.shape)}")


def require_boxes(name: str, boxes: Array) -> None:
    """Raise ``ValueError`` unless ``boxes`` is (M, 7+): x y z dx dy dz heading, then columns that are not read."""
    require_columns(name, boxes, "(M, 7+)", 7)


def tensor_of(array: np.ndarray, dtype: type | None = None) -> Tensor:
    """The array as a tensor, without a copy where torch can share its memory (contiguous and writable)."""
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def require_same_device(**tensors: Tensor) -> None:
    """Raise ``ValueError`` that names two tensors which lie on different devices."""
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != reference.device:
            raise ValueError(
                f"{first} is on {reference.device} but {name} is on {tensor.device}: move them to one device"
            )


def require_scenes(name: str, rows: Array, counts: Tensor) -> list[int]:
    """The rows of each scene in a stack of scenes, as integers. Raises ``ValueError`` unless they add up to ``rows``.

    It reads ``counts``: call it inside the operator, where they are never fake.
    """
    lengths = counts.tolist()
    if min(lengths, default=0) < 0 or sum(lengths) != len(rows):
        raise ValueError(f"the counts {lengths} of {name} must add up to its {len(rows)} rows")
    return lengths


def scenes_for(room: ModuleType, name: str, rows: Array, counts: Tensor) -> list[int] | Tensor:
    """The counts as a module of kernels takes them: for Triton's as they are, for the others read and checked.

    Reading them from a GPU would make the host wait, so there the kernels see to it that no count leads outside
    ``rows``, and counts that do not add up are no error.
    """
    if room.__name__.endswith(".triton"):
        return counts.to(rows.device, torch.int64)
    return require_scenes(name, rows, counts)


def backend(operator: str, device_type: str) -> ModuleType:
    """The module of an operator's folder that serves a type of device: ``cpu``, ``triton``, or ``reference`` elsewhere.

    It is imported when first needed, so importing an operator's door imports neither numba nor Triton.
    """
    return _module(operator, MODULES.get(device_type, "reference"))


@functools.cache
def _module(operator: str, name: str) -> ModuleType:
    if name == "triton" and not (_has_triton() and Path(__file__).with_name(operator).joinpath("triton.py").exists()):
        name = "reference"
    return importlib.import_module(f"pcdet.ops.{operator}.{name}")


@functools.cache
def _has_triton() -> bool:
    """Whether Triton kernels can run; says once what to do where they cannot."""
    if importlib.util.find_spec("triton") is None:
        get_logger().warning("operators run in plain torch on this GPU: `pip install triton` makes them faster")
        return False
    if torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() < (7, 0):
        get_logger().warning("operators run in plain torch on this GPU: Triton needs compute capability 7.0")
        return False
    return True
