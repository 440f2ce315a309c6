"""What a run leaves for the reader's eye: TensorBoard files, a history as JSON, curves as PNG."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pcdet.utils.files import write_json


class History:
    """Curves by tag: the steps at which a value was recorded, and the values."""

    def __init__(self, curves: Mapping[str, tuple[list[int], list[float]]] | None = None):
        self.curves: dict[str, tuple[list[int], list[float]]] = dict(curves or {})

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Record values at a step."""
        for tag, value in values.items():
            steps, numbers = self.curves.setdefault(tag, ([], []))
            steps.append(step)
            numbers.append(float(value))

    def until(self, step: int) -> "History":
        """The part up to and including ``step``: what a resumed run continues."""
        kept = {}
        for tag, (steps, numbers) in self.curves.items():
            count = sum(s <= step for s in steps)
            if count:
                kept[tag] = (steps[:count], numbers[:count])
        return History(kept)

    def save(self, path: Path) -> None:
        """Write the curves as JSON."""
        write_json(path, self.curves)

    @classmethod
    def load(cls, path: Path) -> "History":
        """Read curves; an absent file is an empty history."""
        if not path.is_file():
            return cls()
        return cls({tag: (steps, numbers) for tag, (steps, numbers) in json.loads(path.read_text("utf-8")).items()})


class Tracker:
    """Scalars to TensorBoard, at every step, and to the history, as means over intervals of steps."""

    def __init__(self, folder: Path | None):
        self.history = History()
        self.folder = folder
        self.writer: Any = None
        self._sums: dict[str, tuple[float, int]] = {}  # tag -> sum and number of the values of an interval
        if folder is not None:
            self.writer = open_writer(folder / "tensorboard")

    def resume(self, step: int) -> None:
        """Continue the history of an interrupted run."""
        if self.folder is not None:
            self.history = History.load(self.folder / "history.json").until(step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record the values of one step."""
        if self.writer is None:
            return
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)
            total, count = self._sums.get(tag, (0.0, 0))
            self._sums[tag] = (total + value, count + 1)

    def values(self, values: Mapping[str, float], step: int) -> None:
        """Record what is measured now and then, such as an evaluation's metrics; tags without a group are ``eval/``."""
        if self.writer is None:
            return
        tagged = {tag if tag.startswith("val/") else f"eval/{tag}": value for tag, value in values.items()}
        for tag, value in tagged.items():
            self.writer.add_scalar(tag, value, step)
        self.history.add(tagged, step)

    def close_interval(self, step: int) -> None:
        """Add the means since the last call to the history and save it."""
        if self.folder is None or not self._sums:
            return
        self.history.add({tag: total / count for tag, (total, count) in self._sums.items()}, step)
        self._sums = {}
        self.history.save(self.folder / "history.json")

    def close(self) -> None:
        """Finish the files and draw the curves."""
        if self.writer is not None:
            self.writer.close()
        if self.folder is not None and self.history.curves:
            draw_history(self.history, self.folder)


def open_writer(folder: Path) -> Any:
    """A TensorBoard writer. Raises ``ValueError`` that says how to install the package where it is absent."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ValueError("TensorBoard files need the package tensorboardX: pip install tensorboardX") from error
    return SummaryWriter(log_dir=str(folder))


def draw_history(history: History, folder: Path) -> Path:
    """Draw all curves into ``curves.png``."""
    from pcdet.visual import draw_curves

    path = folder / "curves.png"
    draw_curves(history.curves, path)
    return path
