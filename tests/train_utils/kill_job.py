"""Run by test_kills.py: train from the newest checkpoint on, and end by SIGKILL where the command line says.

``--kill PHASE:STEP`` ends the first process that comes to that place; further ones are for those that follow it.
Phases: ``step`` (within a step), ``save`` (with half a checkpoint written), ``epoch`` (trained, but not yet saved).
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import torch
from engine_fakes import FakeScenes, fresh_model

from pcdet.train_utils import checkpoint, tracking
from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.launch import end_process, start_processes, stop_processes
from pcdet.train_utils.settings import Optimization
from pcdet.utils import distributed as ranks


def build(folder: Path, epochs: int, save_steps: int) -> Trainer:
    """Everything that a checkpoint must hold: BatchNorm, dropout, moments, accumulation, an average of the weights."""
    settings = Optimization(batch_size_per_gpu=2, num_epochs=epochs, accumulation_steps=2, lr=0.02, ema_decay=0.9)
    options = RunOptions(
        folder,
        torch.device("cpu"),
        seed=7,
        checkpoint_steps=save_steps,
        max_checkpoints=2,
        log_interval=10**6,
        sync_bn=ranks.world_size() > 1,
    )
    return Trainer(fresh_model(), FakeScenes(24), settings, options)


def result(trainer: Trainer) -> dict[str, Any]:
    """All that must be equal to the bit."""
    state = trainer.state()
    moments = [v for entry in state["optimizer_state"]["state"].values() for v in entry.values()]
    tensors = [*state["model_state"].values(), *state["ema"]["model_state"].values(), *moments]
    return {"all": torch.cat([t.double().flatten() for t in tensors]), "it": state["it"], "epoch": state["epoch"]}


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def arm(trainer: Trainer, phase: str, step: int) -> None:
    """Let the process end when the run is at ``step``."""

    def there() -> bool:
        return trainer.place.epoch * trainer.plan.steps_per_epoch + trainer.place.step >= step

    if phase == "step":
        backward = trainer._backward
        trainer._backward = lambda group: die() if there() else backward(group)
    elif phase == "epoch":
        end = trainer._end_epoch
        trainer._end_epoch = lambda: die() if there() else end()
    elif phase == "save":
        save = torch.save

        def half(state: Any, file: Any) -> None:
            save(state, file)
            if there():
                file.flush()
                file.truncate(file.tell() // 2)
                die()

        checkpoint.torch.save = half


def next_death(folder: Path, deaths: list[str]) -> tuple[str, int] | None:
    """The place where this process ends; a file keeps count, of which rank 0 is the only writer."""
    note = folder / "deaths.json"
    died = json.loads(note.read_text()) if note.is_file() else 0
    ranks.barrier()
    if died >= len(deaths):
        return None
    if ranks.is_main():
        note.write_text(json.dumps(died + 1))
    phase, step = deaths[died].split(":")
    return phase, int(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save_steps", type=int, default=2)
    parser.add_argument("--kill", nargs="*", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    tracking.draw_history = lambda history, folder: None  # matplotlib takes seconds to load
    start_processes("pytorch" if "WORLD_SIZE" in os.environ else "none", None, "cpu", timeout=30)
    given.folder.mkdir(parents=True, exist_ok=True)
    trainer = build(given.folder, given.epochs, given.save_steps)
    if found := checkpoint.find_newest(given.folder / "ckpt"):
        trainer.resume(found[1], found[0])
    death = next_death(given.folder, given.kill)
    # Of several processes the one dies whose turn it is by the step's number; files are written by rank 0 alone.
    if death is not None and ranks.rank() == (0 if death[0] == "save" else death[1] % ranks.world_size()):
        arm(trainer, *death)
    over = trainer.fit()
    if ranks.is_main():
        torch.save({**result(trainer), "over": over}, given.folder / "result.pth")
    stop_processes()
    end_process(0)


if __name__ == "__main__":
    main()
