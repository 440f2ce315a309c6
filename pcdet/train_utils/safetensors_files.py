"""Weights in safetensors files: the only file that imports the package."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from pcdet.utils.files import atomic_open

SUFFIX = ".safetensors"
NUMBERS = ("epoch", "it")  # of a checkpoint that the metadata keep, as text
TEXTS = ("version", "config")


def write_safetensors(path: str | Path, weights: Mapping[str, Tensor], checkpoint: Mapping[str, Any]) -> None:
    """Write weights atomically, bit for bit; a checkpoint's epoch, it, version and config go into the metadata."""
    package = _package()
    # The format admits neither views nor two names for one memory.
    copies = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    kept = {key: str(checkpoint[key]) for key in (*NUMBERS, *TEXTS) if checkpoint.get(key) is not None}
    data = package.torch.save(copies, metadata={"format": "pt", **kept})
    with atomic_open(path) as file:
        file.write(data)


def read_safetensors(path: str | Path) -> dict[str, Any]:
    """A checkpoint from a safetensors file, written here or elsewhere: ``model_state`` and what the metadata tell.

    Raises ``ValueError`` naming the file where it is damaged.
    """
    package = _package()
    try:
        with package.safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        numbers = {key: int(metadata[key]) for key in NUMBERS if key in metadata}
    except (package.SafetensorError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a safetensors file: {error}") from error
    return {**numbers, "model_state": weights, **{key: metadata[key] for key in TEXTS if key in metadata}}


def _package() -> ModuleType:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ValueError("safetensors files need the package safetensors: pip install 'pcdet[safetensors]'") from error
    return safetensors
