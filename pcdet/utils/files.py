"""Files that are written whole or not at all, and pickles that can hold nothing but data."""

import contextlib
import json
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def atomic_open(path: str | Path, mode: str = "wb") -> Iterator[IO]:
    """Open a temporary file beside ``path`` for writing; on success it replaces ``path`` in one step.

    The data is synced to disk before the rename, so that a kill or a full disk leaves the old file as it was.
    ``mode`` is ``"w"`` or ``"wb"``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(fd, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:  # such as of a full disk
            error.filename = str(path)
        raise
    finally:
        Path(temporary).unlink(missing_ok=True)  # after the rename there is nothing left to remove


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_text(path: str | Path) -> str:
    """A text file that somebody wrote: UTF-8, with or without a byte order mark.

    Raises ``FileNotFoundError``, or ``ValueError`` naming the file where it has another encoding.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}); save it in that encoding"
        ) from error


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_open(path, "w") as file:
        file.write(text)


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON atomically; NumPy scalars and arrays become numbers and lists."""
    write_text(path, json.dumps(value, indent=1, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def write_pickle(path: str | Path, value: Any) -> None:
    """Write a pickle of plain types and NumPy arrays atomically (the format of info files)."""
    with atomic_open(path, "wb") as file:
        pickle.dump(value, file, protocol=4)


_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("collections", "OrderedDict"),
    ("_codecs", "encode"),
    *(
        (module, name)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
        for name in ("_reconstruct", "scalar")
    ),
    *((module, "_frombuffer") for module in ("numpy.core.numeric", "numpy._core.numeric")),
}


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ADMITTED or (module == "numpy.dtypes" and name.endswith("DType")):
            # Files written by numpy 1 and numpy 2 name the same functions differently.
            for candidate in (module, module.replace("numpy.core", "numpy._core")):
                with contextlib.suppress(ModuleNotFoundError, AttributeError):
                    return super().find_class(candidate, name)
        raise pickle.UnpicklingError(
            f"it names {module}.{name}; only plain types and NumPy arrays are admitted, so nothing was loaded"
        )


def read_pickle(path: str | Path) -> Any:
    """Read a pickle that holds plain types and NumPy arrays only.

    Raises ``FileNotFoundError`` if it is absent and ``ValueError``, with the file's name, if it is damaged or names
    any other class (a pickle can otherwise run code when it is read).
    """
    with open(path, "rb") as file, _naming(path):
        return _DataUnpickler(file).load()


def read_pickles(path: str | Path) -> list[Any]:
    """As :func:`read_pickle` for all that was pickled into a file one after another, by Python 2 too."""
    out = []
    with open(path, "rb") as file, _naming(path):
        while file.peek(1):
            out.append(_DataUnpickler(file, encoding="latin1").load())
    return out


@contextlib.contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (pickle.UnpicklingError, EOFError, IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as data: {error}") from error
