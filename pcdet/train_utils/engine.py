"""The training loop of every task: it knows ``model(batch) -> TrainOutput`` and nothing of points or boxes."""

import contextlib
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pcdet.structures.batch import Batch, to_device
from pcdet.structures.detections import TrainOutput
from pcdet.train_utils.batches import BatchPlan, describe_scenes, training_loader
from pcdet.train_utils.checkpoint import VERSION, CheckpointKeeper, save_checkpoint
from pcdet.train_utils.launch import distribute, seed_everything, synchronize_norms
from pcdet.train_utils.optimizers import apply_values, batch_norms, build_optimizer, load_optimizer_state
from pcdet.train_utils.precision import Precision
from pcdet.train_utils.progress import Progress
from pcdet.train_utils.resume import Place, announce_changes, place_of
from pcdet.train_utils.schedules import RunLength, build_schedule
from pcdet.train_utils.settings import Optimization
from pcdet.train_utils.tracking import Tracker
from pcdet.train_utils.weights import load_weights
from pcdet.utils import distributed as ranks
from pcdet.utils.logging import get_logger


class NonFiniteLoss(ValueError):
    """The loss or a gradient is NaN or infinite; the message names the scenes and the terms."""


@dataclass(frozen=True)
class RunOptions:
    """Where and how a run executes, apart from what it computes."""

    folder: Path  # checkpoints go to its ``ckpt``
    device: torch.device
    seed: int = 0
    workers: int = 0
    sync_bn: bool = False
    checkpoint_epochs: int = 1  # epochs from one checkpoint to the next
    max_checkpoints: int = 30
    latest_seconds: float = 300.0  # from one ``latest_model.pth`` to the next
    log_interval: int = 50
    bar: bool = False
    config_text: str = ""  # the resolved YAML, to notice a change when the run is resumed


@dataclass
class Clock:
    """Seconds since it was last read."""

    mark: float = field(default_factory=time.perf_counter)

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self.mark = self.mark, time.perf_counter()
        return self.mark - before


class Trainer:
    """Trains a model on a data set, with checkpoints from which it continues as if it had never stopped.

    Torch's generators are seeded anew for every step from (seed, rank, epoch, step), so that the numbers which a model
    draws (dropout, sampling of proposals) are a function of the place in the run and need not be saved.
    """

    def __init__(self, model: nn.Module, dataset: Any, settings: Optimization, options: RunOptions):
        self.settings = settings
        self.options = options
        self.dataset = dataset
        self.device = options.device
        self.model = (synchronize_norms(model) if options.sync_bn else model).to(self.device)
        self.optimizer = build_optimizer(self.model, settings)
        self.norms = batch_norms(self.model)
        # Models that keep OpenPCDet's buffer global_step are told of every step.
        self.count_step = getattr(self.model, "update_global_step", lambda: None)
        self.runner = distribute(self.model, self.device)
        self.plan = BatchPlan(
            len(dataset),
            settings.batch_size_per_gpu,
            settings.accumulation_steps,
            seed=options.seed,
            rank=ranks.rank(),
            world=ranks.world_size(),
        )
        steps = self.plan.steps_per_epoch
        self.total_steps = steps * settings.num_epochs
        self.schedule = build_schedule(settings, RunLength(self.total_steps, steps, self.plan.samples_per_step))
        self.precision = Precision(self.device)
        if settings.use_amp:
            self.precision = Precision.mixed(self.device, settings.loss_scale_fp16)
        self.place = Place()
        self.keeper = CheckpointKeeper(
            options.folder / "ckpt", max_kept=options.max_checkpoints, seconds_between=options.latest_seconds
        )
        self.tracker = Tracker(options.folder if ranks.is_main() else None)

    def fit(self) -> None:
        """Train from the present place to the end of the last epoch."""
        epochs = self.settings.num_epochs
        if self.place.epoch >= epochs:
            get_logger().info("Finished already (%d/%d epochs): nothing is left to train", self.place.epoch, epochs)
            return
        self._announce()
        self.model.train()
        batches = iter(self._loader())
        progress = self._progress()
        while self.place.epoch < epochs:
            progress.start_epoch(self.place.epoch, self.place.step)
            while self.place.step < self.plan.steps_per_epoch:
                self._step_and_report(batches, progress)
            self._end_epoch()
            progress.end_epoch(self.place.epoch, self.place.it)
        self.tracker.close()
        ranks.barrier()

    def take_step(self, group: list[Batch]) -> dict[str, float]:
        """One optimiser step with the mean gradient of the group's micro-batches; returns what is to be logged."""
        values = self.schedule(self.place.it)
        apply_values(self.optimizer, self.norms, values)
        seed_everything(self.options.seed, ranks.rank(), self.place.epoch, self.place.step)
        self.optimizer.zero_grad(set_to_none=True)
        terms = self._backward(group)
        terms["grad_norm"] = self._clip(group)
        self._count(took=self.precision.step(self.optimizer))
        return {"meta_data/learning_rate": values.lr, **{f"train/{k}": v for k, v in terms.items()}}

    def _backward(self, group: list[Batch]) -> dict[str, float]:
        """Forward and backward passes; returns the means of the loss, its terms and the metrics."""
        rows = []
        for i, batch in enumerate(group):
            with self._reduced(last=i == len(group) - 1):
                with self.precision.autocast():
                    output = self.runner(batch)
                loss = torch.stack([term.float() for term in output.losses.values()]).sum()
                self.precision.backward(loss / len(group))
            rows.append(_scalars(loss, output))
        named = [dict(zip(row, values.tolist(), strict=True)) for row, values in rows]
        for batch, terms in zip(group, named, strict=True):
            if not math.isfinite(terms["loss"]):
                raise self._non_finite("the loss", batch, terms)
        return {key: sum(terms[key] for terms in named) / len(named) for key in named[0]}

    def _reduced(self, last: bool) -> AbstractContextManager:
        """Ranks exchange gradients with the last micro-batch of a step only."""
        if last or not isinstance(self.runner, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.runner.no_sync()

    def _clip(self, group: list[Batch]) -> float:
        """Limit the norm of the gradient; returns the norm before."""
        self.precision.unscale(self.optimizer)
        limit = self.settings.grad_norm_clip or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not math.isfinite(norm) and not self.precision.tolerates_overflow():
            raise self._non_finite("a gradient", group[-1], {"gradient norm": norm})
        return norm

    def _count(self, took: bool) -> None:
        """Move on by a step. One that overflowed in float16 was not taken, and the schedule waits for it."""
        self.place.step += 1
        if took:
            self.place.it += 1
            self.count_step()
            return
        self.place.skipped += 1
        scale = self.precision.scaler.get_scale()
        get_logger().warning(
            "a gradient overflowed in float16: step skipped (%d so far), loss scale %g", self.place.skipped, scale
        )

    def _non_finite(self, what: str, batch: Batch, terms: dict[str, float]) -> NonFiniteLoss:
        """Dump the batch and say all that is known."""
        path = self.options.folder / f"non_finite_batch_rank{ranks.rank()}.pth"
        save_checkpoint(path, {k: v for k, v in batch.items() if _is_plain(v)})
        listed = ", ".join(f"{key} {value:g}" for key, value in terms.items())
        return NonFiniteLoss(
            f"{what} is not finite in epoch {self.place.epoch + 1}, step {self.place.step + 1} (rank {ranks.rank()}): "
            f"{listed}. Scenes: {describe_scenes(batch)}. The batch is in {path}; it changed no parameter. "
            "Look at these scenes, lower OPTIMIZATION.LR or GRAD_NORM_CLIP, or train without --use_amp"
        )

    def _step_and_report(self, batches: Iterator[Batch], progress: Progress) -> None:
        epoch, number = self.place.epoch, self.place.step
        clock = Clock()
        group = [to_device(next(batches), self.device) for _ in range(self.plan.micro_batches(number))]
        data_seconds = clock.lap()
        values = self.take_step(group)
        progress.step(
            epoch,
            number,
            self.place.it,
            loss=values["train/loss"],
            lr=values["meta_data/learning_rate"],
            data=data_seconds,
            forward=clock.lap(),
        )
        self.tracker.scalars(values, epoch * self.plan.steps_per_epoch + number + 1)
        if (number + 1) % self.options.log_interval == 0:
            self.tracker.close_interval(epoch * self.plan.steps_per_epoch + number + 1)
        if ranks.is_main() and self.keeper.is_due():
            self.keeper.save_latest(self.state())

    def _end_epoch(self) -> None:
        self.place.epoch += 1
        self.place.step = 0
        self.tracker.close_interval(self.place.epoch * self.plan.steps_per_epoch)
        is_last = self.place.epoch == self.settings.num_epochs
        if ranks.is_main() and (is_last or self.place.epoch % self.options.checkpoint_epochs == 0):
            self.keeper.save_epoch(self.state())

    def state(self) -> dict[str, Any]:
        """A checkpoint: OpenPCDet's keys, and beside them what an exact resume needs."""
        return {
            "epoch": self.place.epoch,
            "it": self.place.it,
            "model_state": {name: value.cpu() for name, value in self.model.state_dict().items()},
            "optimizer_state": self.optimizer.state_dict(),
            "version": VERSION,
            "step": self.place.step,
            "skipped_steps": self.place.skipped,
            "steps_per_epoch": self.plan.steps_per_epoch,
            "total_steps": self.total_steps,
            "seed": self.options.seed,
            "scaler": self.precision.state_dict(),
            "config": self.options.config_text,
        }

    def resume(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint, ours or OpenPCDet's. Raises ``ValueError`` if it does not fit the model."""
        load_weights(self.model, checkpoint, path)
        if not checkpoint.get("optimizer_state"):
            raise ValueError(f"{path} holds weights alone; start from it with --pretrained_model")
        load_optimizer_state(self.optimizer, checkpoint["optimizer_state"])
        self.precision.load_state_dict(checkpoint.get("scaler") or {})
        self.place = place_of(checkpoint, self.plan.steps_per_epoch)
        announce_changes(checkpoint, self.state(), self.schedule(self.place.it).lr)
        self.tracker.resume(self.place.epoch * self.plan.steps_per_epoch + self.place.step)

    def _announce(self) -> None:
        plan, logger = self.plan, get_logger()
        logger.info(
            "%d scenes, %d process(es), %d scenes a step, %d steps an epoch, %d epochs on %s",
            plan.length, plan.world, plan.samples_per_step, plan.steps_per_epoch, self.settings.num_epochs, self.device,
        )  # fmt: skip
        if plan.drops_single:
            logger.info("The last batch of an epoch would hold a single scene: it is dropped, for BatchNorm's sake")
        if self.settings.use_amp:
            logger.info("Mixed precision: forward passes in %s", self.precision.dtype)

    def _loader(self) -> Any:
        return training_loader(
            self.dataset,
            self.plan,
            self.place.epoch,
            self.settings.num_epochs,
            self.place.step,
            self.options.workers,
            self.device,
        )

    def _progress(self) -> Progress:
        return Progress(
            epochs=self.settings.num_epochs,
            steps_per_epoch=self.plan.steps_per_epoch,
            samples_per_step=self.plan.samples_per_step,
            first_step=self.place.epoch * self.plan.steps_per_epoch + self.place.step,
            bar=self.options.bar and ranks.is_main(),
            interval=self.options.log_interval,
        )


def _scalars(loss: Tensor, output: TrainOutput) -> tuple[list[str], Tensor]:
    """All numbers of a micro-batch in one tensor, so that they cross from the device together."""
    named = {**output.losses, **output.metrics, "loss": loss}
    return list(named), torch.stack([v.detach().float().reshape(()).to(loss.device) for v in named.values()])


def _is_plain(value: Any) -> bool:
    """Can a file that is read as data hold it?"""
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return isinstance(value, Tensor | int | float | str | bool | None)
