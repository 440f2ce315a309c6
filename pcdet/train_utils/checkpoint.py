"""Checkpoint files: written whole or not at all, read as data."""

import contextlib
import os
import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pcdet.train_utils.safetensors_files import SUFFIX, read_safetensors
from pcdet.utils.files import atomic_open
from pcdet.utils.logging import get_logger
from pcdet.version import __version__

LATEST = "latest_model.pth"
BEST = "best_model.pth"
NO_NUMBER = "no_number"  # for an epoch, where a file's name tells none
STEP_FILES_KEPT = 2  # the newest, and one to fall back on should it be damaged
VERSION = f"pcdet+{__version__}"
_EPOCH_FILE = re.compile(r"checkpoint_epoch_(\d+)\.pth")
_STEP_FILE = re.compile(r"checkpoint_step_(\d+)\.pth")


class DamagedCheckpoint(ValueError):
    """A checkpoint file that cannot be read."""


def save_checkpoint(path: str | Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically. ``state`` holds tensors and plain types only.

    Raises ``OSError`` with the file's name where the disk is full; the file is then what it was before.
    """
    try:
        with atomic_open(path) as file:
            torch.save(state, file)
    except RuntimeError as error:
        # torch closes its archive all the same, and says "unexpected pos" of it in place of the system's error.
        if not isinstance(error.__context__, OSError):
            raise
        raise OSError(error.__context__.errno, os.strerror(error.__context__.errno), str(path)) from error


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, ours or OpenPCDet's, onto the CPU.

    Tensors, plain types and NumPy's numbers are admitted (OpenPCDet's learning rates are NumPy scalars), nothing else.
    A file ``*.safetensors`` holds weights alone. Raises ``FileNotFoundError`` if it is absent, and
    :class:`DamagedCheckpoint` (a ``ValueError``) if it is cut short or holds other objects.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"The checkpoint {path} does not exist")
    if path.suffix == SUFFIX:
        return read_safetensors(path)
    try:
        with _admitting_numpy_numbers():
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, KeyError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read as a checkpoint: {_first_line(error)}") from error
    if not isinstance(checkpoint, dict):
        raise DamagedCheckpoint(f"{path} holds a {type(checkpoint).__name__}, not a checkpoint")
    return checkpoint


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _admitting_numpy_numbers() -> AbstractContextManager:
    """Within it, ``weights_only`` loading admits NumPy's scalars."""
    admitted = _numpy_numbers()
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 6):
        return torch.serialization.safe_globals(admitted)
    # Before torch 2.6 things are admitted for the whole process, and only under the names they have in this NumPy.
    torch.serialization.add_safe_globals([a[0] if isinstance(a, tuple) else a for a in admitted])
    return contextlib.nullcontext()


def _numpy_numbers() -> list[Any]:
    """What pickles of NumPy scalars name; NumPy 1 and NumPy 2 call the same function differently."""
    scalar = np.float64(0).__reduce__()[0]
    types = [type(np.dtype(t)) for t in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")]
    names = [f"{module}.multiarray.scalar" for module in ("numpy.core", "numpy._core")]
    return [np.dtype, *types, *((scalar, name) for name in names)]


def epoch_files(folder: Path) -> list[Path]:
    """``checkpoint_epoch_N.pth`` of a folder, by rising N."""
    found = [(int(m[1]), f) for f in folder.glob("*.pth") if (m := _EPOCH_FILE.fullmatch(f.name))]
    return [f for _, f in sorted(found)]


def step_files(folder: Path) -> list[Path]:
    """``checkpoint_step_N.pth`` of a folder, the oldest first: with other batches a later step may have a lower N."""
    found = [f for f in folder.glob("*.pth") if _STEP_FILE.fullmatch(f.name)]
    return sorted(found, key=lambda f: (f.stat().st_mtime_ns, f.name))


def epoch_of(path: str | Path) -> str:
    """The epoch that a checkpoint's name tells (its last number), ``step_N`` in an epoch's middle, or ``no_number``."""
    if step := _STEP_FILE.fullmatch(Path(path).name):
        return f"step_{step[1]}"
    numbers = re.findall(r"\d+", Path(path).name)
    return numbers[-1] if numbers else NO_NUMBER


def progress_of(checkpoint: Mapping[str, Any]) -> tuple[int, int, int]:
    """What orders the checkpoints of a run: epochs, scenes seen of the next, steps taken."""
    return checkpoint.get("epoch", 0), checkpoint.get("sampler", {}).get("seen", 0), checkpoint.get("it", 0)


def find_newest(folder: Path, since: float = 0.0) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint of a folder that has seen most; damaged files are passed over with a warning.

    Files written before ``since``, in seconds since 1970, do not count. ``None`` if there is no checkpoint. Raises
    ``DamagedCheckpoint`` if there are some and none can be read.
    """
    latest = [folder / LATEST] if (folder / LATEST).is_file() else []
    kinds = [epoch_files(folder)[::-1], step_files(folder)[::-1], latest]
    kinds = [[f for f in files if f.stat().st_mtime >= since] for files in kinds]
    if not any(kinds):
        return None
    found = [pair for files in kinds if (pair := next(_readable(files), None))]
    if not found:
        raise DamagedCheckpoint(f"No checkpoint in {folder} can be read. To begin anew, add --no_resume")
    return max(found, key=lambda pair: progress_of(pair[1]))


def _readable(files: list[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in files:
        try:
            yield file, load_checkpoint(file)
        except DamagedCheckpoint as error:
            get_logger().warning("%s. It is passed over", error)


class CheckpointKeeper:
    """Writes a run's checkpoints and keeps the number of files in bounds.

    A file is removed only when a newer one stands whole on the disk, and the best one never.
    """

    def __init__(self, folder: Path, *, max_kept: int = 30, seconds_between: float = 300.0, steps_between: int = 0):
        if max_kept < 1:
            raise ValueError(f"--max_ckpt_save_num is {max_kept}; at least 1 checkpoint is kept")
        if steps_between < 0:
            raise ValueError(f"--ckpt_save_steps is {steps_between}; 0 saves at no step, N at every N-th")
        self.folder = folder
        self.max_kept = max_kept
        self.seconds_between = seconds_between
        self.steps_between = steps_between
        self._saved_at = time.monotonic()

    def save_epoch(self, state: dict[str, Any]) -> Path:
        """Write ``checkpoint_epoch_N.pth``; only then are the oldest beyond the limit removed."""
        return self._save(self.folder / f"checkpoint_epoch_{state['epoch']}.pth", state, epoch_files, self.max_kept)

    def save_step(self, state: dict[str, Any]) -> Path:
        """Write ``checkpoint_step_N.pth``; of its kind the newest ones alone are kept."""
        return self._save(self.folder / f"checkpoint_step_{state['it']}.pth", state, step_files, STEP_FILES_KEPT)

    def _save(self, path: Path, state: dict[str, Any], kind: Callable[[Path], list[Path]], kept: int) -> Path:
        save_checkpoint(path, state)
        self._saved_at = time.monotonic()
        others = [f for f in kind(self.folder) if f != path]
        for old in others[: max(len(others) + 1 - kept, 0)]:
            old.unlink()
        return path

    def save_best(self, state: dict[str, Any]) -> Path:
        """Write ``best_model.pth`` in place of the one that was best before."""
        path = self.folder / BEST
        save_checkpoint(path, state)
        return path

    def is_due(self, step: int) -> bool:
        """Is a file to be written after step number ``step`` of the run?"""
        return self._is_due_by_number(step) or time.monotonic() - self._saved_at >= self.seconds_between

    def save_due(self, state: dict[str, Any], step: int) -> None:
        """Write what is to be written after a step: a file of its own by its number, ``latest_model.pth`` by time."""
        if self._is_due_by_number(step):
            self.save_step(state)
        else:
            self.save_latest(state)

    def _is_due_by_number(self, step: int) -> bool:
        return self.steps_between > 0 and step % self.steps_between == 0

    def save_latest(self, state: dict[str, Any]) -> Path:
        """Write ``latest_model.pth``, which may stand for the middle of an epoch."""
        path = self.folder / LATEST
        save_checkpoint(path, state)
        self._saved_at = time.monotonic()
        return path

    def remove_leftovers(self) -> None:
        """Remove the temporary files of a process that was killed while it wrote."""
        for file in self.folder.glob(".*.pth.*.tmp"):
            file.unlink(missing_ok=True)


def set_aside(path: Path) -> Path | None:
    """Rename a file or a folder of an earlier run so that a fresh one can use its name; nothing is deleted."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    number = 1
    while (other := path.with_name(f"{path.stem}_before_{number}{path.suffix}")).exists():
        number += 1
    return path.rename(other)
