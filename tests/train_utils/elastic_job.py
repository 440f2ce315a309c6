"""Run by test_elastic.py and test_two_nodes.py: train, be killed at one step, go on from the newest checkpoint."""

import argparse
import os
import signal
from pathlib import Path

import torch
from engine_fakes import FakeScenes, fresh_model

from pcdet.train_utils import tracking
from pcdet.train_utils.checkpoint import find_newest
from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.launch import choose_device, end_process, is_restart, start_processes, stop_processes
from pcdet.train_utils.settings import Optimization
from pcdet.utils import distributed as ranks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill_rank", type=int, help="the rank that ends in the first attempt")
    parser.add_argument("--kill_step", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tracking.draw_history = lambda history, folder: None  # matplotlib takes seconds to load
    start_processes("pytorch", None, "cpu", timeout=30)
    settings = Optimization(batch_size_per_gpu=2, num_epochs=3, optimizer="adam", lr=0.01, weight_decay=0.0)
    options = RunOptions(given.folder, choose_device("cpu"), latest_seconds=0.0)
    trainer = Trainer(fresh_model(), FakeScenes(16), settings, options)
    first = 0
    if found := find_newest(given.folder / "ckpt"):
        trainer.resume(found[1], found[0])
        first = trainer.place.it
    ranks.barrier()
    take = trainer.take_step

    def take_or_die(group):
        if not is_restart() and ranks.rank() == given.kill_rank and trainer.place.it == given.kill_step:
            os.kill(os.getpid(), signal.SIGKILL)
        return take(group)

    trainer.take_step = take_or_die
    trainer.fit()
    weights = torch.cat([v.double().flatten() for v in trainer.model.state_dict().values()])
    torch.save(
        {"weights": weights, "first": first, "steps": trainer.place.it, "restarted": is_restart()},
        given.folder / f"rank{ranks.rank()}.pth",
    )
    stop_processes()
    end_process(0)


if __name__ == "__main__":
    main()
