"""Evaluation of a model on a data set, in one process or in several."""

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from pcdet.structures.batch import to_device
from pcdet.train_utils.batches import evaluation_loader
from pcdet.train_utils.checkpoint import NO_NUMBER, epoch_of, load_checkpoint
from pcdet.train_utils.ema import state_to_evaluate
from pcdet.train_utils.modes import keeping_modes
from pcdet.train_utils.tracking import open_writer
from pcdet.train_utils.weights import load_pretrained, load_weights
from pcdet.utils import distributed as ranks
from pcdet.utils.files import write_json, write_pickle, write_text
from pcdet.utils.logging import get_logger

if TYPE_CHECKING:
    from pcdet.evaluation.report import EvalReport

Result = dict[str, Any]


class Evaluation(NamedTuple):
    """What one evaluation found; the same on every rank."""

    report: "EvalReport"
    results: list[Result]  # one a scene, in the data set's order
    seconds_per_scene: float  # wall time with data loading, over all ranks


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a model on a data set.

    ``options`` are keyword arguments of ``dataset.evaluate``; those that it does not take are left out.
    ``save_to_file`` also writes the data set's own files into ``final_result/data``. With ``partial`` a checkpoint may
    lack weights or have some of other shapes.
    """

    model: nn.Module
    dataset: Any
    device: torch.device
    batch_size: int
    workers: int = 0
    save_to_file: bool = False
    bar: bool = False
    partial: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, folder: Path) -> Evaluation:
        """Run over the whole data set, compute the metrics and write them, with ``result.pkl``, into ``folder``."""
        began = time.perf_counter()
        loader = evaluation_loader(self.dataset, self.batch_size, self.workers, self.device)
        mine = predict(self.model, loader, self.dataset, self.device, bar=self.bar and ranks.is_main())
        results = in_order(ranks.gather_objects(mine), len(self.dataset))
        seconds = (time.perf_counter() - began) / max(len(self.dataset), 1)
        get_logger().info("Generate label finished(sec_per_example: %.4f second).", seconds)
        if ranks.is_main():
            self._write_results(results, folder)  # before the metrics, which may fail
        report = ranks.gather_objects(self._metrics(results, folder) if ranks.is_main() else None)[0]
        return Evaluation(report, results, seconds)

    def _write_results(self, results: list[Result], folder: Path) -> None:
        write_pickle(folder / "result.pkl", results)
        get_logger().info("Result is saved to %s", folder)
        if self.save_to_file:
            self.dataset.write_results(results, folder / "final_result" / "data")

    def _metrics(self, results: list[Result], folder: Path) -> "EvalReport":
        report = self.dataset.evaluate(results, **accepted(self.dataset.evaluate, self.options))
        write_json(folder / "metrics.json", report.metrics)
        write_text(folder / "report.txt", report.text + "\n")
        return report

    def checkpoint(self, path: Path, folder: Path) -> Evaluation:
        """Evaluate a checkpoint's weights, the averaged ones where it has them, and log the report."""
        logger, epoch, saved = get_logger(), epoch_of(path), load_checkpoint(path)
        if epoch == NO_NUMBER and "epoch" in saved:  # such as best_model.pth
            epoch = f"{saved['epoch']} ({path.name})"
        self.load(state_to_evaluate(saved), path)
        logger.info("*************** EPOCH %s EVALUATION *****************", epoch)
        evaluation = self(folder)
        logger.info("*************** Performance of EPOCH %s *****************\n%s", epoch, evaluation.report.text)
        return evaluation

    def load(self, checkpoint: Mapping[str, Any], path: Path) -> None:
        """The weights of a checkpoint into the model. Raises ``ValueError`` with a table of what does not fit."""
        if self.partial:
            load_pretrained(self.model, checkpoint, path, partial=True)
        else:
            load_weights(self.model, checkpoint, path)


def evaluate_files(evaluate: Evaluator, files: Sequence[Path], folder: Path, split: str) -> None:
    """Evaluate checkpoints one by one into ``folder/epoch_N/split``.

    Metrics go to TensorBoard (``tensorboard_<split>``), evaluated epochs to ``eval_list_<split>.txt``.
    """
    writer = open_writer(folder / f"tensorboard_{split}") if ranks.is_main() else None
    for file in files:
        epoch = epoch_of(file)
        evaluation = evaluate.checkpoint(file, folder / f"epoch_{epoch}" / split)
        if writer is None:
            continue
        for tag, value in evaluation.report.metrics.items():
            writer.add_scalar(tag, value, int(epoch) if epoch.isdigit() else 0)
        note_evaluated(folder, split, epoch)
    if writer is not None:
        writer.close()


def note_evaluated(folder: Path, split: str, epoch: str) -> None:
    """Add an epoch to ``eval_list_<split>.txt``."""
    with open(folder / f"eval_list_{split}.txt", "a", encoding="utf-8") as done:
        done.write(f"{epoch}\n")


def evaluated_epochs(folder: Path, split: str) -> set[str]:
    """The epochs in ``eval_list_<split>.txt``."""
    path = folder / f"eval_list_{split}.txt"
    return set(path.read_text(encoding="utf-8").split()) if path.is_file() else set()


@torch.no_grad()
def predict(model: nn.Module, loader: DataLoader, dataset: Any, device: torch.device, *, bar: bool) -> list[Result]:
    """Results of this rank's scenes, as plain arrays."""
    results: list[Result] = []
    with keeping_modes(model):
        model.eval()
        for batch in tqdm(loader, desc="eval", unit="batch", disable=not bar, dynamic_ncols=True):
            results += dataset.to_results(batch, model(to_device(batch, device)))
    return results


def in_order(parts: list[list[Result]], length: int) -> list[Result]:
    """Results of all ranks in the data set's order. Raises ``ValueError`` if a scene is missing or stands twice."""
    results = sorted((result for part in parts for result in part), key=lambda result: result["index"])
    indices = [result["index"] for result in results]
    if indices != list(range(length)):
        missing = sorted(set(range(length)) - set(indices))
        raise ValueError(f"{len(indices)} results for {length} scenes; without a result: {missing[:10]}")
    return results


def accepted(function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``options`` that a function has a parameter for."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in parameters}


@torch.no_grad()
def inference_milliseconds(model: nn.Module, loader: DataLoader, device: torch.device, *, warmup: int = 2) -> float:
    """Mean time of the forward pass over a loader's batches, in milliseconds, after ``warmup`` of them.

    Where there are no more batches than that, the warm-up is timed as well.
    """
    model.eval()
    times = []
    for batch in loader:
        batch = to_device(batch, device)
        wait_for(device)
        began = time.perf_counter()
        model(batch)
        wait_for(device)
        times.append(time.perf_counter() - began)
    timed = times[warmup:] or times
    return 1000 * sum(timed) / max(len(timed), 1)


def wait_for(device: torch.device) -> None:
    """Return when the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
