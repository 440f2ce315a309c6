"""What several seeds of one configuration reached: mean and standard deviation, as text and JSON."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Metrics = Mapping[str, float]
Summary = dict[str, dict[str, dict[str, Any]]]  # what was evaluated -> metric -> mean, std, values


def seed_tag(extra_tag: str, seed: int) -> str:
    """The folder of one seed's run."""
    return f"{extra_tag}_seed_{seed}"


def summarise(runs: Sequence[Mapping[str, Metrics]]) -> Summary:
    """Mean, sample standard deviation and the values themselves of every metric that all runs have.

    A run names what was evaluated, such as ``last epoch``, and the metrics of each.
    """
    out: Summary = {}
    for what in runs[0]:
        if not all(what in run for run in runs):
            continue
        names = [name for name in runs[0][what] if all(name in run[what] for run in runs)]
        columns = {name: [run[what][name] for run in runs] for name in names}
        out[what] = {
            name: {"mean": statistics.fmean(values), "std": statistics.stdev(values), "values": values}
            for name, values in columns.items()
        }
    return out


def table(summary: Summary) -> str:
    """One line a metric."""
    lines = []
    for what, metrics in summary.items():
        seeds = len(next(iter(metrics.values()))["values"]) if metrics else 0
        lines.append(f"{what}, {seeds} seeds: mean +- standard deviation (each seed)")
        width = max(map(len, metrics), default=0)
        for name, row in metrics.items():
            each = " ".join(f"{value:.4f}" for value in row["values"])
            lines.append(f"  {name:<{width}} {row['mean']:.4f} +- {row['std']:.4f}  ({each})")
    return "\n".join(lines)


def write_summary(stem: Path, summary: Summary) -> None:
    """``<stem>.txt`` and ``<stem>.json``."""
    from pcdet.utils.files import write_json, write_text

    write_text(stem.parent / f"{stem.name}.txt", table(summary) + "\n")
    write_json(stem.parent / f"{stem.name}.json", summary)
