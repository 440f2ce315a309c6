"""The forms of a checkpoint: ours, OpenPCDet's, and weights alone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.train_utils.checkpoint import VERSION, save_checkpoint
from pcdet.train_utils.safetensors_files import NUMBERS, SUFFIX, TEXTS, write_safetensors
from pcdet.train_utils.weights import model_state_of

OPENPCDET_KEYS = ("epoch", "it", "model_state", "optimizer_state", "version")


def write_pcdet(path: str | Path, checkpoint: Mapping[str, Any]) -> None:
    """All that a checkpoint holds, its numbers as plain ones, its weights without a wrapper's prefix."""
    save_checkpoint(path, _completed(checkpoint))


def write_openpcdet(path: str | Path, checkpoint: Mapping[str, Any]) -> None:
    """OpenPCDet's keys alone, of tensors and plain types: ``torch.load`` reads it with ``weights_only`` anywhere."""
    whole = _completed(checkpoint)
    save_checkpoint(path, {key: whole[key] for key in OPENPCDET_KEYS})


def _completed(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """With all of OpenPCDet's keys: where a file tells nothing of a run, none of it has passed."""
    defaults = {"epoch": 0, "it": 0, "model_state": {}, "optimizer_state": None, "version": VERSION}
    rest = checkpoint if "model_state" in checkpoint else {}
    return plain({**defaults, **rest, "model_state": model_state_of(checkpoint)})


def plain(value: Any) -> Any:
    """The same with NumPy's numbers as Python's and every mapping a ``dict``; tensors are left alone."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


def write_weights(path: str | Path, checkpoint: Mapping[str, Any]) -> None:
    """The weights in a safetensors file, with epoch, it, version and configuration as metadata."""
    write_safetensors(path, model_state_of(checkpoint), checkpoint if "model_state" in checkpoint else {})


WRITERS: dict[str, Callable[[str | Path, Mapping[str, Any]], None]] = {
    "openpcdet": write_openpcdet,
    "safetensors": write_weights,
    "pcdet": write_pcdet,
}


def left_out(form: str, checkpoint: Mapping[str, Any]) -> list[str]:
    """The keys of a checkpoint that a form has no place for."""
    if form == "pcdet" or "model_state" not in checkpoint:
        return []
    kept = OPENPCDET_KEYS if form == "openpcdet" else ("model_state", *NUMBERS, *TEXTS)
    return [key for key, value in checkpoint.items() if key not in kept and value is not None]


def form_of(path: Path, wanted: str | None) -> str:
    """The form to write: ``wanted``, else what the suffix tells. Raises ``ValueError`` where the two do not fit."""
    by_suffix = "safetensors" if path.suffix == SUFFIX else None
    if wanted is None and by_suffix is None:
        raise ValueError(
            f"{path}: its suffix does not tell the form, give --to: openpcdet or pcdet (or name it *{SUFFIX})"
        )
    if wanted is not None and (wanted == "safetensors") != (by_suffix == "safetensors"):
        raise ValueError(
            f"{path}: --to {wanted} does not go with the suffix '{path.suffix}'; files are read by their suffix, and "
            f"{SUFFIX} stands for safetensors alone"
        )
    return wanted or by_suffix
