"""Clouds as text: ``.xyz``, ``.txt``, ``.csv``. A first line of names is read; columns are else known by place."""

from pathlib import Path

import numpy as np

from pcdet.datasets.cloud_formats.layout import CloudLayout


def text_points(path: Path, layout: CloudLayout) -> np.ndarray:
    """Numbers in columns parted by commas, semicolons or blanks; lines that begin with # or // are passed over.

    Raises ``ValueError`` naming the file, and the line where it is known.
    """
    number, line = _first_line(path)
    if line is None:
        return layout.by_place(np.zeros((0, len(layout.columns)), np.float32), path)
    delimiter = next((mark for mark in ",;\t" if mark in line), None)
    names = None if _is_numbers(line.split(delimiter)) else [f.strip(" \"'") for f in line.split(delimiter)]
    if names is not None and any(_is_numbers([name]) for name in names):
        shown = line if len(line) <= 40 else f"{line[:40]}..."
        raise ValueError(f"{path}:{number}: '{shown}' is neither numbers nor names of columns: is this a point cloud?")
    if names is not None and len(set(names)) < len(names):
        raise ValueError(f"{path}:{number}: a column's name stands twice in {', '.join(names)}")
    skip = number if names else number - 1
    if names and _first_line(path, skip)[1] is None:
        return layout.by_name({name: np.zeros(0) for name in names}, path)
    try:
        table = np.loadtxt(
            path, np.float64, comments=("#", "//"), delimiter=delimiter, skiprows=skip, ndmin=2, encoding="utf-8-sig"
        )
    except ValueError as error:
        raise ValueError(f"{path}, counted from line {skip + 1} as row 0: {error}") from error
    if names is None:
        return layout.by_place(table, path)
    if table.shape[1] != len(names):
        raise ValueError(f"{path}:{number}: {len(names)} columns are named, {table.shape[1]} follow")
    return layout.by_name(dict(zip(names, table.T, strict=True)), path)


def _first_line(path: Path, skip: int = 0) -> tuple[int, str | None]:
    """Number and text of the first line with content after ``skip`` lines."""
    number = 0
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if number > skip and line.strip() and not line.lstrip().startswith(("#", "//")):
                    return number, line.strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number + 1} is not text ({error.reason})") from error
    return number, None


def _is_numbers(fields: list[str]) -> bool:
    try:
        return all(float(f) is not None for f in fields)
    except ValueError:
        return False
