"""Where the time of a training step goes, measured without making it longer.

A step is data (waiting for the loader), forward, backward, communication and optimiser, which add up to the step but
for a little Python. Instants are clock readings on a CPU and CUDA events on a GPU; events are read when the device has
passed them, some steps later, so that nobody waits for it.

Communication is measured, in two parts:

* Collectives that a rank waits for (statistics of SyncBatchNorm, counts, decisions) pass through
  :func:`pcdet.utils.distributed.all_reduce`, which is timed from call to end; their time is taken off the phase that
  they lie in.
* Gradients are exchanged while the backward pass still runs. A communication hook of DistributedDataParallel notes when
  each bucket of gradients is ready and when its sum has arrived. The last bucket is ready when the last gradient is
  computed: what the backward pass takes from there on is communication that was waited for. The time in which buckets
  were under way before that is ``overlapped``: it costs no time of its own on a GPU, but cores on a CPU.

Waiting for a slower rank counts as communication too: the two cannot be told apart from one side.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from pcdet.utils import distributed as ranks

PHASES = ("data", "forward", "backward", "communication", "optimizer")
Instant = float | torch.cuda.Event


class StepReport(NamedTuple):
    """Seconds of one step. ``phases`` has the keys of PHASES; ``overlapped`` lies within the backward phase."""

    step: int
    phases: dict[str, float]
    overlapped: float
    wall: float  # of the whole step on the host, with the data


@dataclass
class Span:
    """A stretch of time, and the phase that it lies in, if any."""

    phase: str | None
    start: Instant
    end: Instant | None = None

    @property
    def seconds(self) -> float:
        return between(self.start, self.end)


@dataclass
class _Record:
    step: int = 0
    data: float = 0.0
    wall: float = 0.0
    phases: list[Span] = field(default_factory=list)
    collectives: list[Span] = field(default_factory=list)  # waited for
    buckets: list[list[Span]] = field(default_factory=list)  # of each backward pass that exchanged gradients


def between(a: Instant, b: Instant) -> float:
    """Seconds from one instant to another. Both must have passed."""
    return b - a if isinstance(a, float) else a.elapsed_time(b) / 1000


class StepTimes:
    """Measures the steps of one rank."""

    def __init__(self, device: torch.device):
        self.on_gpu = device.type == "cuda"
        self._record = _Record()
        self._waiting: deque[_Record] = deque()
        self._phase: str | None = None
        self._started = time.perf_counter()

    def _now(self) -> Instant:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start_step(self) -> None:
        """Begin to wait for data."""
        self._record = _Record()
        self._started = time.perf_counter()

    def have_data(self) -> float:
        """The data are there. Returns the seconds since the step's start."""
        self._record.data = time.perf_counter() - self._started
        return self._record.data

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Within it runs a part of the phase ``name``."""
        span = Span(name, self._now())
        self._record.phases.append(span)
        self._phase = name
        if name == "backward":
            self._record.buckets.append([])
        try:
            yield
        finally:
            self._phase = None
            span.end = self._now()

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Around a collective that is waited for."""
        span = Span(self._phase, self._now())
        yield
        span.end = self._now()
        self._record.collectives.append(span)

    def reduce_bucket(self, _: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """The communication hook: the mean over the ranks, as without it, and when it began and ended."""
        span = Span("backward", self._now())
        self._record.buckets[-1].append(span)
        future = dist.all_reduce(bucket.buffer().div_(ranks.world_size()), async_op=True).get_future()

        def arrived(done: Future) -> Tensor:
            # On a GPU this runs in a stream that waits for the exchange, not in the one that computes.
            span.end = self._now()
            return done.value()[0]

        return future.then(arrived)

    def end_step(self, step: int) -> float:
        """The step is done. Returns the seconds since its data were there, as the host sees them."""
        wall = time.perf_counter() - self._started
        self._record.step, self._record.wall = step, wall
        self._waiting.append(self._record)
        return wall - self._record.data

    def read(self) -> list[StepReport]:
        """The steps that are over by now and were not read before; on a GPU the last few may come later."""
        reports = []
        while self._waiting and self._is_over(self._waiting[0]):
            reports.append(_report(self._waiting.popleft()))
        return reports

    def _is_over(self, record: _Record) -> bool:
        return not self.on_gpu or all(span.end.query() for span in record.phases)


def _report(record: _Record) -> StepReport:
    phases = dict.fromkeys(PHASES, 0.0) | {"data": record.data}
    for span in record.phases:
        phases[span.phase] += span.seconds
    for span in record.collectives:
        phases["communication"] += span.seconds
        if span.phase is not None:
            phases[span.phase] -= span.seconds
    overlapped = 0.0
    ends = [span.end for span in record.phases if span.phase == "backward"]
    for buckets, end in zip(record.buckets, ends, strict=True):
        if buckets:
            waited = between(buckets[-1].start, end)
            phases["communication"] += waited
            phases["backward"] -= waited
            overlapped += _union_before(buckets)
    return StepReport(record.step, phases, overlapped, record.wall)


def _union_before(buckets: list[Span]) -> float:
    """Seconds before the last bucket was ready in which any other was under way."""
    first, last = buckets[0].start, between(buckets[0].start, buckets[-1].start)
    total = reached = 0.0
    for span in buckets[:-1]:  # they become ready one after the other
        start, end = between(first, span.start), min(between(first, span.end), last)
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total
