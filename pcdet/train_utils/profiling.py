"""A trace of some steps, and the operators that cost most in them."""

import os
from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from pcdet.utils import distributed as ranks
from pcdet.utils.files import write_text
from pcdet.utils.logging import get_logger

SKIPPED = 2  # first steps: one in which kernels compile, and one that warms the profiler up
OPERATORS = 15


class StepProfiler:
    """Records ``steps`` steps of each rank, after the first two, into ``folder``; with 0 it does nothing.

    Writes ``trace_rankN.json`` (for chrome://tracing or ui.perfetto.dev) and ``operators_rankN.txt``, a table of the
    15 costliest operators by their own time, which is logged too.
    """

    def __init__(self, folder: Path, steps: int, device: torch.device):
        if steps < 0:
            raise ValueError(f"--profile {steps}: it is a number of steps")
        self.folder = folder
        self.steps = steps
        self.on_gpu = device.type == "cuda"
        self.wrote = False
        self._profile: profile | None = None

    def __enter__(self) -> "StepProfiler":
        if self.steps:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.on_gpu else [])]
            plan = schedule(wait=SKIPPED - 1, warmup=1, active=self.steps, repeat=1)
            self._profile = profile(activities=activities, schedule=plan, on_trace_ready=self._write)
            self._profile.__enter__()
        return self

    def step(self) -> None:
        """A step is over."""
        if self._profile is not None:
            self._profile.step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._profile is None:
            return
        self._profile.__exit__(kind, error, trace)
        self._profile = None
        if not self.wrote:
            get_logger().warning("--profile: the run was over before step %d, nothing was recorded", SKIPPED + 1)

    def _write(self, recorded: profile) -> None:
        self.wrote = True
        self.folder.mkdir(parents=True, exist_ok=True)
        trace = self.folder / f"trace_rank{ranks.rank()}.json"
        unfinished = self.folder / f".{trace.name}"
        recorded.export_chrome_trace(str(unfinished))
        os.replace(unfinished, trace)
        order = "self_device_time_total" if self.on_gpu else "self_cpu_time_total"
        table = recorded.key_averages().table(sort_by=order, row_limit=OPERATORS, max_name_column_width=60)
        write_text(self.folder / f"operators_rank{ranks.rank()}.txt", table)
        get_logger().info("The %d costliest operators; the trace is %s\n%s", OPERATORS, trace, table)
