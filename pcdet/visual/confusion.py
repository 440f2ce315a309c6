"""Confusion matrices of classifiers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from pcdet.visual.canvas import new_figure, save_png

MARGIN = 190  # pixels for names


def draw_confusion(
    matrix: np.ndarray, class_names: Sequence[str], path: str | Path, *, title: str | None = None
) -> Path:
    """Draw a confusion matrix into a PNG file and return its path.

    ``matrix[i, j]`` (K, K) counts what is ``class_names[i]`` and was called ``class_names[j]``. A cell's colour is its
    share of the row, its text the count; the title is by default the share on the diagonal. Raises ``ValueError`` if
    the shape is not (K, K) or K is 0.
    """
    matrix = np.asarray(matrix)
    count = len(class_names)
    if matrix.shape != (count, count) or not count:
        raise ValueError(
            f"the matrix has shape {matrix.shape}, but {count} class names need {(count, count)}, at least one"
        )
    cell = int(np.clip(1100 // count, 28, 80))
    side = max(cell * count, 240)
    figure = new_figure(side + MARGIN + 110, side + MARGIN + 50)
    width, height = figure.bbox.size
    axes = figure.add_axes((MARGIN / width, MARGIN / height, side / width, side / height))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    _write_counts(axes, matrix, shares, cell)
    _label(axes, class_names, matrix, title)
    bar = figure.add_axes(((MARGIN + side + 20) / width, MARGIN / height, 14 / width, side / height))
    figure.colorbar(ScalarMappable(Normalize(0, 1), "Blues"), cax=bar, label="share of the true class")
    return save_png(figure, path)


def _write_counts(axes: Axes, matrix: np.ndarray, shares: np.ndarray, cell: int) -> None:
    for row, column in zip(*np.nonzero(matrix), strict=True):
        color = "#ffffff" if shares[row, column] > 0.55 else "#1b2a41"
        size = min(11.0, cell * 0.24)
        axes.text(column, row, f"{matrix[row, column]:g}", ha="center", va="center", fontsize=size, color=color)


def _label(axes: Axes, class_names: Sequence[str], matrix: np.ndarray, title: str | None) -> None:
    ticks = range(len(class_names))
    axes.set_xticks(ticks, class_names, rotation=60, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(ticks, class_names, fontsize=9)
    axes.set_xlabel("predicted class", fontsize=11)
    axes.set_ylabel("true class", fontsize=11)
    total = matrix.sum()
    text = f"{np.trace(matrix) / total:.1%} of {total:g} right" if total > 0 else "nothing was classified"
    axes.set_title(text if title is None else title, fontsize=12)
