"""The curves of a training run: losses, learning rate, metrics."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from pcdet.visual.canvas import new_figure, save_png

Curve = tuple[Sequence[int], Sequence[float]]
PANEL_WIDTH, PANEL_HEIGHT = 600, 400  # pixels
MAX_COLUMNS = 3
MAX_CURVES = 10  # in one panel: more cannot be told apart
MAX_NAMES = 4  # of equal curves in one label: more are wider than the panel
COLORS = (
    "#d1495b", "#00798c", "#edae49", "#30638e", "#7d5ba6", "#2e8b57", "#e07a2f", "#8c564b", "#7f7f7f", "#c2408f",
)  # fmt: skip


def draw_curves(history: Mapping[str, Curve], path: str | Path, *, title: str = "") -> Path:
    """Draw the curves of a run, one panel a kind, into a PNG file and return its path.

    ``history`` maps a tag such as ``train/loss`` to steps and values, equally long. Losses are drawn on a logarithmic
    scale if all are positive; values that are not finite leave gaps; equal curves share one line and name both tags.
    Raises ``ValueError`` naming a tag whose steps and values differ in number.
    """
    for tag, (steps, values) in history.items():
        if len(steps) != len(values):
            raise ValueError(f"the curve {tag} has {len(steps)} steps and {len(values)} values")
    panels = split_panels(history)
    columns = 2 if len(panels) == 4 else min(MAX_COLUMNS, max(len(panels), 1))
    rows = max(1, math.ceil(len(panels) / columns))
    figure = new_figure(columns * PANEL_WIDTH, rows * PANEL_HEIGHT + (30 if title else 0))
    figure.set_layout_engine("constrained")
    if title:
        figure.suptitle(title, fontsize=13)
    if not panels:
        figure.text(0.5, 0.5, "no curves were recorded", ha="center", va="center", fontsize=13, color="#666666")
    for number, (name, curves) in enumerate(panels.items(), start=1):
        _draw_panel(figure.add_subplot(rows, columns, number), name, curves)
    return save_png(figure, path)


def kind_of(tag: str, values: Sequence[float]) -> str:
    """The panel of a curve, from its tag, and for metrics from its size: shares up to 1 apart from percentages."""
    name = tag.rsplit("/", 1)[-1].lower()
    if "loss" in name:
        return "Losses"
    if tag.startswith("time/"):
        return "Seconds a step"
    if tag.startswith(("speed/", "device/")):
        return "Speed and device"
    if name in ("learning_rate", "lr"):
        return "Learning rate"
    if name == "grad_norm":
        return "Gradient norm"
    return "Metrics, 0 to 1" if all(0 <= v <= 1 for v in values if math.isfinite(v)) else "Metrics"


def split_panels(history: Mapping[str, Curve]) -> dict[str, dict[str, Curve]]:
    """Panel -> label -> curve, losses first; equal curves joined, crowded panels divided."""
    kinds: dict[str, dict[str, Curve]] = {k: {} for k in ("Losses", "Learning rate", "Gradient norm")}
    for tag, curve in history.items():
        kinds.setdefault(kind_of(tag, curve[1]), {})[tag] = curve
    panels = {}
    for kind, curves in kinds.items():
        named = list(_join_equal(curves).items())
        parts = math.ceil(len(named) / MAX_CURVES)
        for part in range(parts):
            name = kind if parts == 1 else f"{kind} ({part + 1} of {parts})"
            panels[name] = dict(named[part * MAX_CURVES : (part + 1) * MAX_CURVES])
    return panels


def _join_equal(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """Curves with equal points under one label, ``train/loss = rpn_loss``; a hidden line would mislead."""
    same: dict[tuple, list[str]] = {}
    for tag, (steps, values) in curves.items():
        same.setdefault((tuple(steps), np.asarray(values, dtype=float).tobytes()), []).append(tag)
    return {_joint_label(tags): curves[tags[0]] for tags in same.values()}


def _joint_label(tags: Sequence[str]) -> str:
    """``train/loss = rpn_loss``: a prefix is said again only where it changes."""
    prefix = tags[0].rpartition("/")[0] + "/"
    label = " = ".join([tags[0], *(tag.removeprefix(prefix) for tag in tags[1:MAX_NAMES])])
    return label if len(tags) <= MAX_NAMES else f"{label} = {len(tags) - MAX_NAMES} more"


def _draw_panel(axes: Axes, name: str, curves: Mapping[str, Curve]) -> None:
    for color, (label, (steps, values)) in zip(COLORS, curves.items(), strict=False):
        numbers = np.asarray(values, dtype=float)
        numbers[~np.isfinite(numbers)] = np.nan
        marker = "o" if len(steps) <= 30 else None
        axes.plot(steps, numbers, label=label, color=color, linewidth=1.6, marker=marker, markersize=3)
    if name.startswith("Losses"):
        _scale_losses(axes, [v for _, values in curves.values() for v in values if math.isfinite(v)])
    axes.set_title(name, fontsize=11)
    axes.set_xlabel("step", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(True, which="both", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, framealpha=0.85)


def _scale_losses(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers, if all values are positive."""
    if not values or min(values) <= 0:
        return
    axes.set_yscale("log")
    wide = max(values) > 4 * min(values)  # else 1, 2, 5, ... may leave an axis without any number
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20) if wide else MaxNLocator(6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
