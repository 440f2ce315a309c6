"""What more processes bring: the table of strong scaling, and what follows from it.

Strong scaling keeps the global batch, so that every row computes the same steps, shared among more processes.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pcdet.train_utils.speed import WAIT_SHARE, workers_needed
from pcdet.train_utils.step_times import PHASES, StepReport

NEARLY = 0.95  # of the highest speed, which fewer processes may reach too


@dataclass(frozen=True)
class ScalingRow:
    """Means over the measured steps and the ranks; times in seconds, memory in GiB."""

    processes: int
    batch: int  # scenes of a step over all processes
    workers: int  # for each process
    threads: int  # of each process, on a CPU
    steps: int  # measured
    step_seconds: float
    epoch_seconds: float
    samples_per_second: float
    memory: float  # peak of a process, the largest of all
    overlapped: float
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def communication_share(self) -> float:
        """Of a step: communication that was waited for."""
        return self.phases["communication"] / self.step_seconds

    @property
    def workers_needed(self) -> int:
        """Loading processes a process so that steps do not wait for data; as many as now if they wait little."""
        data = self.phases["data"]
        if data < WAIT_SHARE * self.step_seconds:
            return self.workers
        return max(workers_needed(data, self.step_seconds - data, self.workers), self.workers)


def summarise(
    ranks: Sequence[Sequence[StepReport]],
    memory: Sequence[float],
    *,
    batch: int,
    scenes: int,
    workers: int,
    threads: int,
) -> ScalingRow:
    """The row of one run from the steps of every rank; a step lasts as long as on its slowest rank."""
    steps = min(map(len, ranks))
    if steps == 0:
        raise ValueError("no step was measured")
    seconds = sum(max(reports[i].wall for reports in ranks) for i in range(steps)) / steps
    count = steps * len(ranks)
    phases = {phase: sum(r.phases[phase] for reports in ranks for r in reports[:steps]) / count for phase in PHASES}
    return ScalingRow(
        processes=len(ranks),
        batch=batch,
        workers=workers,
        threads=threads,
        steps=steps,
        step_seconds=seconds,
        epoch_seconds=seconds * scenes / batch,
        samples_per_second=batch / seconds,
        memory=max(memory),
        overlapped=sum(r.overlapped for reports in ranks for r in reports[:steps]) / count,
        phases=phases,
    )


def efficiency(row: ScalingRow, base: ScalingRow) -> float:
    """Speed for each process as a share of that in ``base``, the run with the fewest processes."""
    return (row.samples_per_second / row.processes) / (base.samples_per_second / base.processes)


def cells(rows: Sequence[ScalingRow]) -> list[dict[str, Any]]:
    """The table's lines, by column."""
    return [
        {
            "processes": row.processes,
            "batch a process": row.batch // row.processes,
            "epoch (s)": f"{row.epoch_seconds:.1f}",
            "step (s)": f"{row.step_seconds:.3f}",
            "samples/s": f"{row.samples_per_second:.2f}",
            "peak memory a process (GiB)": f"{row.memory:.2f}",
            "data": f"{row.phases['data'] / row.step_seconds:.1%}",
            "communication": f"{row.communication_share:.1%}",
            "overlapped": f"{row.overlapped / row.step_seconds:.1%}",
            "speed-up": f"{row.samples_per_second / rows[0].samples_per_second:.2f}",
            "parallel efficiency": f"{efficiency(row, rows[0]):.1%}",
        }
        for row in rows
    ]


def markdown(rows: Sequence[ScalingRow]) -> str:
    """The table, its conditions and the recommendation."""
    lines = cells(rows)
    head = list(lines[0])
    table = [f"| {' | '.join(head)} |", "|" + "---:|" * len(head)]
    table += [f"| {' | '.join(str(line[name]) for name in head)} |" for line in lines]
    first = rows[0]
    conditions = (
        f"Global batch {first.batch}, {first.workers} worker(s) a process, "
        f"{min(r.steps for r in rows)} measured steps. Communication is what steps waited for, also for slower ranks; "
        "what ran beside the backward pass is overlapped."
    )
    return "\n".join([*table, "", conditions, "", recommendation(rows), ""])


def comma_separated(rows: Sequence[ScalingRow]) -> str:
    """The unrounded numbers as CSV."""
    flat = []
    for row in rows:
        values = asdict(row)
        phases = values.pop("phases")
        values |= {f"{phase}_seconds": phases[phase] for phase in PHASES}
        flat.append({**values, "parallel_efficiency": efficiency(row, rows[0])})
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def recommended(rows: Sequence[ScalingRow]) -> ScalingRow:
    """The fewest processes that come near the highest speed."""
    best = max(row.samples_per_second for row in rows)
    return next(row for row in rows if row.samples_per_second >= NEARLY * best)


def recommendation(rows: Sequence[ScalingRow]) -> str:
    """In words: how many processes, how many workers, and why."""
    chosen = recommended(rows)
    text = (
        f"Recommended: {chosen.processes} process(es), {chosen.workers_needed} worker(s) each: "
        f"{chosen.samples_per_second:.2f} samples/s, {efficiency(chosen, rows[0]):.0%} parallel efficiency."
    )
    if chosen.workers_needed > chosen.workers:
        share = chosen.phases["data"] / chosen.step_seconds
        text += f" With {chosen.workers} worker(s) a step waited for data in {share:.0%} of its time."
    return text
