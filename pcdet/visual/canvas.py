"""What all pictures share: a figure that needs no display, colours of classes, PNG files written whole."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pcdet.utils.files import atomic_open

DPI = 100

# Bright on dark ground and apart from each other for colour-blind readers too; no white, which is the ground truth's.
PALETTE = (
    "#ff9f1c", "#5dff6b", "#ff5fc4", "#2ee6d6", "#8ab4ff", "#ffe66d", "#ff6b5e", "#c79bff", "#5ad1ff", "#e0b07c",
)  # fmt: skip
GROUND_TRUTH = "#ffffff"
# Of verdicts; bluish green, vermilion and yellow stay apart for colour-blind readers.
HIT, FALSE_ALARM, MISS, NOT_JUDGED = "#2ee6b4", "#ff5a4d", "#ffe14d", "#97a3b4"


def class_color(label: int) -> str:
    """The colour of a 1-based label as ``#rrggbb``; colours repeat after ten classes."""
    return PALETTE[(label - 1) % len(PALETTE)]


def new_figure(width: int, height: int, background: str = "#ffffff") -> Figure:
    """A figure of ``width`` x ``height`` pixels with an Agg canvas: pyplot and its global state are not touched."""
    # Agg truncates inches * dpi, so a hair more keeps 28.999... from becoming 28.
    figure = Figure(figsize=((width + 0.01) / DPI, (height + 0.01) / DPI), dpi=DPI, facecolor=background)
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: str | Path) -> Path:
    """Write the figure as PNG; a killed process leaves the old file as it was."""
    path = Path(path)
    with atomic_open(path, "wb") as file:
        figure.savefig(file, format="png", dpi=DPI, facecolor=figure.get_facecolor(), bbox_inches=None)
    return path


def as_boxes(boxes: np.ndarray | None, what: str) -> np.ndarray:
    """(M, 7+) boxes of any float type -> (M, 7) float64; ``None`` and an empty array give no boxes.

    Raises ``ValueError`` naming ``what`` if the shape is another one.
    """
    if boxes is None:
        return np.zeros((0, 7))
    boxes = np.asarray(boxes, dtype=np.float64)
    if boxes.size == 0:
        return np.zeros((0, 7))
    if boxes.ndim != 2 or boxes.shape[1] < 7:
        raise ValueError(f"{what} has shape {boxes.shape}, expected (M, 7 or more): x y z dx dy dz heading")
    return boxes[:, :7]


def as_labels(labels: Sequence[int] | np.ndarray, count: int, class_names: Sequence[str]) -> np.ndarray:
    """Labels as (M,) int64. Raises ``ValueError`` unless there are ``count`` of them, from 1 to the class count."""
    labels = np.asarray(labels, dtype=np.int64).reshape(-1)
    if len(labels) != count:
        raise ValueError(f"{count} boxes have {len(labels)} labels; every box needs one")
    wrong = labels[(labels < 1) | (labels > len(class_names))]
    if len(wrong):
        raise ValueError(f"label {wrong[0]} is none of 1..{len(class_names)} ({', '.join(class_names)})")
    return labels
