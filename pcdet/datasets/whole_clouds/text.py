"""Points as lines of text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def read_rows(path: Path, columns: Sequence[str], delimiter: str | None = ",") -> np.ndarray:
    """(N, C) float32, one row a line; ``delimiter=None`` means any blanks.

    Raises ``ValueError`` that names the file, and the line of a number that is not finite.
    """
    try:
        rows = np.loadtxt(path, delimiter=delimiter, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} should hold rows of {', '.join(columns)}: {error}") from error
    if rows.shape[1] != len(columns) or len(rows) == 0:
        raise ValueError(
            f"{path} holds {rows.shape[0]} rows of {rows.shape[1]} numbers; rows of {', '.join(columns)} are wanted"
        )
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(f"{path}:{int(finite.argmin()) + 1}: NaN or infinite number")
    return rows
