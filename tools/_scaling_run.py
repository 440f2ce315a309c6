"""One process count of tools/scaling.py: train some steps as tools/train.py does, and write down how long they took."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import train
from _common import output_folder, read_config, run, start, stop
from _train_options import overrides, parse

if TYPE_CHECKING:
    from pcdet.train_utils.engine import Trainer
    from pcdet.train_utils.step_times import StepReport

SKIPPED = 3  # first steps: kernels compile, workers start


class Recorder:
    """Takes the place of the trainer's report of its speed: keeps steps, and ends the run when there are enough.

    The last step of an epoch is left out if it holds fewer scenes than the others.
    """

    def __init__(self, trainer: "Trainer", steps: int):
        self.trainer = trainer
        self.steps = steps
        self.reports: list[StepReport] = []

    def add(self, report: "StepReport") -> None:
        """Keep a step of full size."""
        plan = self.trainer.plan
        ragged = plan.length % plan.samples_per_step and report.step % plan.steps_per_epoch == 0
        if report.step > SKIPPED and not ragged and len(self.reports) < self.steps:
            self.reports.append(report)
        if len(self.reports) == self.steps:
            self.trainer.signals.received = "the end of the measurement"

    def tell(self, usage: Mapping[str, float]) -> None:
        """Nothing: the table tells."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build as for training, take the steps, gather, write."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    cut = arguments.index("--set") if "--set" in arguments else len(arguments)
    own, rest = parser.parse_known_args(arguments[:cut])
    given = parse(__doc__, [*rest, "--fresh", *arguments[cut:]])
    # Enough epochs for any number of steps: what a schedule does to the rate does not change the times.
    config = read_config(given, [*overrides(given), "OPTIMIZATION.NUM_EPOCHS", "100000"], accumulates=True)
    device = start(given)
    folder = output_folder(given, config)
    train.open_log(given, config, folder)
    trainer = train.build(given, config, folder, device, train.find_checkpoint(given, folder))[0]
    recorder = trainer.speed = Recorder(trainer, own.steps)
    trainer.fit()
    write(recorder, own.result)
    stop()
    return 0


def write(recorder: Recorder, path: Path) -> None:
    """Rank 0 writes the row of all ranks."""
    import torch

    from pcdet.train_utils.scaling import summarise
    from pcdet.utils import distributed as ranks
    from pcdet.utils.files import write_json

    trainer = recorder.trainer
    everybody = ranks.gather_objects(recorder.reports)
    memory = ranks.gather_objects(trainer.usage.read()["device/peak_memory_gib"])
    row = summarise(
        everybody,
        memory,
        batch=trainer.plan.samples_per_step,
        scenes=trainer.plan.length,
        workers=trainer.options.workers,
        threads=torch.get_num_threads(),
    )
    if ranks.is_main():
        write_json(path, asdict(row))


if __name__ == "__main__":
    run(main)
