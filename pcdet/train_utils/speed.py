"""How fast a run is, what it waits for, and how many loading processes would end a wait for data."""

import math
import os
from collections.abc import Mapping, Sequence
from statistics import median

from pcdet.train_utils.step_times import PHASES, StepReport
from pcdet.utils.logging import get_logger

WAIT_SHARE = 0.1  # of a step that waits for data, from which on it is worth a warning
FEWEST_STEPS = 5  # that a judgement of the data takes
SKIPPED = 2  # first steps of a process: workers start and kernels compile


def workers_needed(data: float, rest: float, workers: int) -> int:
    """How many workers deliver a step's data in ``rest`` seconds, the time that the step takes without waiting.

    ``workers`` of them, which never rest when the step waits for them, take ``workers * (data + rest)`` seconds of
    work for a step. Without workers the step's process loads for ``data`` seconds itself.
    """
    work = workers * (data + rest) if workers else data
    return max(math.ceil(work / max(rest, 1e-9) - 1e-6), 1)  # clocks are not exact: 3.0000001 is 3


def scalars(report: StepReport, samples: int, world: int) -> dict[str, float]:
    """A step for TensorBoard: ``time/<phase>`` in seconds and ``speed/samples_per_second`` over all ranks."""
    values = {f"time/{phase}": seconds for phase, seconds in report.phases.items()}
    if world > 1:
        values["time/overlapped_communication"] = report.overlapped
    return {**values, "speed/samples_per_second": samples / max(report.wall, 1e-9)}


class Speed:
    """Tells about the steps since it last told."""

    def __init__(self, *, samples_per_step: int, workers: int, world: int):
        self.samples = samples_per_step
        self.workers = workers
        self.world = world
        self._reports: list[StepReport] = []
        self._to_skip = SKIPPED
        self._warned_of = 0

    def add(self, report: StepReport) -> None:
        """Take in a step; the first ones of a process do not count."""
        if self._to_skip:
            self._to_skip -= 1
            return
        self._reports.append(report)

    def tell(self, usage: Mapping[str, float]) -> None:
        """Log the means of the steps since the last call, and warn if they waited for data."""
        if not self._reports:
            return
        get_logger().info("%s", self.line(usage))
        if len(self._reports) >= FEWEST_STEPS:
            self._judge_data(self._reports)
        self._reports = []

    def line(self, usage: Mapping[str, float]) -> str:
        """The means, such as ``Times: data 0.010 s (5%), forward 0.080 s (40%), ...; 20.0 samples/s``."""
        count = len(self._reports)
        means = {phase: sum(r.phases[phase] for r in self._reports) / count for phase in PHASES}
        wall = sum(r.wall for r in self._reports) / count
        shown = [p for p in PHASES if p != "communication" or self.world > 1]
        parts = ", ".join(f"{phase} {means[phase]:.3f} s ({100 * means[phase] / wall:.0f}%)" for phase in shown)
        texts = [f"Times: {parts}", f"{self.samples / wall:.1f} samples/s"]
        if "device/utilisation_percent" in usage:
            texts.append(f"GPU {usage['device/utilisation_percent']:.0f}%, {usage['device/memory_gib']:.1f} GiB in use")
        texts.append(f"peak memory {usage.get('device/peak_memory_gib', 0):.2f} GiB")
        return "; ".join(texts)

    def _judge_data(self, reports: Sequence[StepReport]) -> None:
        data = median(r.phases["data"] for r in reports)
        rest = median(r.wall - r.phases["data"] for r in reports)
        needed = workers_needed(data, rest, self.workers)
        if data < WAIT_SHARE * (data + rest) or needed <= max(self.workers, self._warned_of):
            return
        self._warned_of = needed
        cores = os.cpu_count() or 1
        get_logger().warning(
            "Each step waits %.3f s for data, %.0f%% of its time, with --workers %d. By these times %d workers a "
            "process would keep up (this machine has %d cores for %d process(es))",
            data, 100 * data / (data + rest), self.workers, needed, cores, self.world,
        )  # fmt: skip
