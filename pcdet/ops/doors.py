"""What the doors of all operators share: shape checks, and the choice of an implementation.

A door checks its arguments and calls an operator registered with torch ``pcdet::...``, so that ``torch.compile``,
``torch.export`` and fake tensors see one opaque step instead of a numba kernel or a loop. That operator asks
:func:`backend` for the module which serves the device. NumPy arrays go to the module without that detour.
"""

import importlib
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray | Tensor
MODULES = {"cpu": "cpu"}  # device type -> module with kernels for it


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


def backend(operator: str, device_type: str) -> ModuleType:
    """The module of an operator's folder that serves a type of device: ``cpu``, or ``reference`` elsewhere.

    It is imported when first needed, so importing an operator's door does not import numba.
    """
    return importlib.import_module(f"pcdet.ops.{operator}.{MODULES.get(device_type, 'reference')}")
