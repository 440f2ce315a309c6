"""Speed by the number of processes, and where their steps spend the time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pcdet.visual.canvas import new_figure, save_png

COLORS = {
    "data": "#edae49", "forward": "#00798c", "backward": "#30638e", "communication": "#d1495b", "optimizer": "#7d5ba6",
    "other": "#bbbbbb",
}  # fmt: skip


def draw_scaling(
    processes: Sequence[int],
    samples_per_second: Sequence[float],
    shares: Sequence[Mapping[str, float]],
    path: str | Path,
) -> Path:
    """Draw speed against its ideal, and the shares of a step (0 to 1, by phase), into a PNG file; returns its path.

    The ideal is the speed of the first entry times the growth in processes.
    """
    figure = new_figure(1100, 430)
    figure.set_layout_engine("constrained")
    speed, parts = figure.subplots(1, 2)
    names = [str(count) for count in processes]
    speed.plot(
        names, [samples_per_second[0] * n / processes[0] for n in processes], "--", color="#888888", label="ideal"
    )
    speed.plot(names, samples_per_second, "o-", color=COLORS["forward"], label="measured")
    speed.set(xlabel="processes", ylabel="samples/s", title="Speed at the same global batch")
    speed.set_ylim(bottom=0)
    speed.grid(alpha=0.3)
    speed.legend()
    base = [0.0] * len(names)
    for phase, color in COLORS.items():
        heights = [100 * share.get(phase, 0.0) for share in shares]
        parts.bar(names, heights, bottom=base, color=color, label=phase, width=0.6)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    parts.set(xlabel="processes", ylabel="% of a step", title="Where a step's time goes", ylim=(0, 100))
    parts.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save_png(figure, path)
