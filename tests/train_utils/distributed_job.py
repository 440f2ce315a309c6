"""Run by test_distributed.py in several processes: train, evaluate, and write down what each rank saw."""

import argparse
import json
from pathlib import Path

import torch
from engine_fakes import FakeScenes, fresh_model

from pcdet.train_utils import tracking
from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.evaluate import Evaluator
from pcdet.train_utils.launch import choose_device, end_process, start_processes, stop_processes
from pcdet.train_utils.settings import Optimization
from pcdet.utils import distributed as ranks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--local_rank", "--local-rank", type=int)
    parser.add_argument("--launcher", default="pytorch")
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--scenes", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tracking.draw_history = lambda history, folder: None  # matplotlib takes seconds to load
    start_processes(given.launcher, 0, "cpu")
    plain = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}
    settings = Optimization(batch_size_per_gpu=given.batch_size, num_epochs=2, accumulation_steps=2, **plain)
    model = fresh_model(norm=False, dropout=0.0)
    trainer = Trainer(model, FakeScenes(given.scenes), settings, RunOptions(given.folder, choose_device("cpu")))
    norms = []
    take = trainer.take_step
    trainer.take_step = lambda group: norms.append(out := take(group)) or out
    trainer.fit()
    evaluation = Evaluator(model, FakeScenes(5), trainer.device, batch_size=2)(given.folder / "eval")
    seen = {
        "steps": trainer.place.it,
        "norms": [outcome.values()["train/grad_norm"] for outcome in norms],
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
        "evaluated": [r["frame_id"] for r in evaluation.results],
        "metrics": evaluation.report.metrics,
    }
    (given.folder / f"rank{ranks.rank()}.json").write_text(json.dumps(seen))
    stop_processes()
    end_process(0)


if __name__ == "__main__":
    main()
