"""The training loop of every task: it knows ``model(batch) -> TrainOutput`` and nothing of points or boxes."""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pcdet.models.losses.normalizer import StepCounts, counting_over_ranks
from pcdet.structures.batch import Batch
from pcdet.structures.detections import TrainOutput
from pcdet.train_utils.batches import BatchPlan, training_loader
from pcdet.train_utils.checkpoint import VERSION, CheckpointKeeper
from pcdet.train_utils.determinism import naming_operators
from pcdet.train_utils.device_usage import DeviceUsage
from pcdet.train_utils.ema import WeightAverage
from pcdet.train_utils.global_batch import describe_batch, with_scaled_rate
from pcdet.train_utils.launch import distribute, synchronize_norms
from pcdet.train_utils.non_finite import NonFinitePolicy
from pcdet.train_utils.optimizers import (
    batch_norms,
    build_optimizer,
    can_skip_on_device,
    lay_channels_last,
    load_optimizer_state,
    set_norm_momentum,
    set_rates,
    train_mode,
)
from pcdet.train_utils.outcome import Outcome
from pcdet.train_utils.precision import Precision
from pcdet.train_utils.prefetch import on_device
from pcdet.train_utils.profiling import StepProfiler
from pcdet.train_utils.progress import Progress
from pcdet.train_utils.resume import PLACE_KEYS, Place, announce_changes, library_versions, place_of, sampler_state
from pcdet.train_utils.schedules import RunLength, build_schedule
from pcdet.train_utils.seeds import seed_everything
from pcdet.train_utils.settings import Optimization
from pcdet.train_utils.shared_memory import check_shared_memory
from pcdet.train_utils.signals import StopSignals
from pcdet.train_utils.speed import Speed, scalars
from pcdet.train_utils.step_times import StepTimes
from pcdet.train_utils.tracking import Tracker
from pcdet.train_utils.validation import Monitor
from pcdet.train_utils.weights import load_weights
from pcdet.utils import distributed as ranks
from pcdet.utils.logging import get_logger


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
    checkpoint_steps: int = 0  # steps from one ``checkpoint_step_N.pth`` to the next; 0 writes none
    latest_seconds: float = 300.0  # from one ``latest_model.pth`` to the next
    nan_policy: Literal["stop", "skip"] = "stop"
    nan_limit: int = 10  # steps in a row that ``skip`` passes over
    log_interval: int = 50
    profile_steps: int = 0  # steps of which a trace is written
    bar: bool = False
    reads_late: bool | None = None  # read a step's numbers while the next is computed; None: on a GPU, where it can
    config_text: str = ""  # the resolved YAML, to notice a change when the run is resumed


class Trainer:
    """Trains a model on a data set, with checkpoints from which it continues as if it had never stopped.

    Generators are seeded anew for every step from (seed, rank, epoch, step), so that the numbers which a model draws
    (dropout, sampling of proposals) are a function of the place in the run: checkpoints need no states of generators,
    of any rank.

    On a GPU the host runs ahead. What a step has come to (its loss, whether its gradients are numbers) decides on the
    device whether the weights move; the host reads it when it has asked for the gradients of the next step, before
    those are used. So the GPU never waits, and whatever follows from a bad number is as if the host had read at once.
    """

    def __init__(self, model: nn.Module, dataset: Any, settings: Optimization, options: RunOptions):
        self.unscaled = settings
        self.options = options
        self.dataset = dataset
        self.device = options.device
        self.model = (synchronize_norms(model) if options.sync_bn else model).to(self.device)
        if settings.channels_last:
            lay_channels_last(self.model)
        self.plan = BatchPlan(
            len(dataset),
            settings.batch_size_per_gpu,
            settings.accumulation_steps,
            seed=options.seed,
            rank=ranks.rank(),
            world=ranks.world_size(),
        )
        self.settings = settings = with_scaled_rate(settings, self.plan.samples_per_step)
        self.optimizer = build_optimizer(self.model, settings)
        self.norms = batch_norms(self.model)
        self.runner = distribute(self.model, self.device)
        self.times = StepTimes(self.device)
        if isinstance(self.runner, DistributedDataParallel):
            self.runner.register_comm_hook(None, self.times.reduce_bucket)
        steps = self.plan.steps_per_epoch
        self.total_steps = steps * settings.num_epochs
        self.schedule = build_schedule(settings, RunLength(self.total_steps, steps, self.plan.samples_per_step))
        late = self.device.type == "cuda" if options.reads_late is None else options.reads_late
        self.reads_late = late and can_skip_on_device(self.optimizer)
        self.unread: Outcome | None = None  # of the last step
        self._settled: deque[Outcome] = deque()  # read, but not reported
        self.precision = Precision(self.device)
        if settings.use_amp:
            self.precision = Precision.mixed(self.device, settings.loss_scale_fp16, settings.amp_dtype)
        self.average = WeightAverage(self.model, settings.ema_decay) if settings.ema_decay else None
        self.non_finite = NonFinitePolicy(options.folder, options.nan_policy, options.nan_limit)
        self.monitor: Monitor | None = None  # what is evaluated while the model trains, if anything
        self.place = Place()
        self.signals = StopSignals()
        self.must_stop = False  # has any rank been told to stop?
        self.keeper = CheckpointKeeper(
            options.folder / "ckpt",
            max_kept=options.max_checkpoints,
            seconds_between=options.latest_seconds,
            steps_between=options.checkpoint_steps,
        )
        self.tracker = Tracker(options.folder if ranks.is_main() else None)
        self.usage = DeviceUsage(self.device)
        self.speed = Speed(samples_per_step=self.plan.samples_per_step, workers=options.workers, world=self.plan.world)
        self.profiler = StepProfiler(options.folder / "profile", options.profile_steps, self.device)

    def fit(self) -> bool:
        """Train from the present place to the end of the last epoch.

        Returns whether the run is over: not if SIGTERM or SIGUSR1 ended it after a step, with a checkpoint of that.
        """
        if self.place.epoch >= self.settings.num_epochs or (self.monitor is not None and self.monitor.is_exhausted()):
            get_logger().info(
                "Finished already (%d/%d epochs): nothing is left to train", self.place.epoch, self.settings.num_epochs
            )
            return True
        self._announce()
        if self.monitor is not None:
            self.monitor.require_metric()
        if ranks.is_main():
            self.keeper.remove_leftovers()
            check_shared_memory(self.dataset, self.plan.batch_size, self.options.workers)
        train_mode(self.model, self.settings.freeze_bn)
        with self.signals, naming_operators(), self.profiler, ranks.timing_collectives(self.times.collective):
            over = self._train(on_device(self._loader(), self.device), self._progress())
        self.tracker.close()
        ranks.barrier()
        return over

    def _train(self, batches: Iterator[Batch], progress: Progress) -> bool:
        stops_early = False
        while self.place.epoch < self.settings.num_epochs and not stops_early:
            progress.start_epoch(self.place.epoch, self.place.step)
            while self.place.step < self.plan.steps_per_epoch:
                self._step_and_report(batches, progress)
                if self.must_stop:
                    self._leave(progress)
                    return False
            stops_early = self._end_epoch()
            progress.end_epoch(self.place.epoch, self.place.it)
        return True

    def take_step(self, group: list[Batch]) -> Outcome:
        """One optimiser step with the mean gradient of the group's micro-batches.

        Every micro-batch weighs the same, also the last of an epoch, which may hold fewer scenes; so does every rank.
        Where the host runs ahead, the outcome is not read yet, but that of the step before is by now.
        """
        set_norm_momentum(self.norms, self.schedule(self._steps()))  # their statistics move with every forward pass
        self._seed()
        self.non_finite.before_step(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        rows = self._backward(group)
        with self.times.phase("optimizer"):
            norm = self._clip()
        self.settle()
        outcome = Outcome.of(
            self.place,
            group,
            rows,
            norm,
            tolerates=self.precision.tolerates_overflow(),
            signalled=self.signals.received is not None,
        )
        self._update(outcome)
        self.unread = outcome
        self.place.step += 1
        if not self.reads_late or self.place.step == self.plan.steps_per_epoch:
            self.settle()
        return outcome

    def _update(self, outcome: Outcome) -> None:
        """Move the weights, and what follows them, if the step is to be taken."""
        rates = self.schedule(self.place.it)
        set_rates(self.optimizer, rates)
        outcome.lr = rates.lr
        with self.times.phase("optimizer"):
            taken = outcome.taken if self.reads_late else not (outcome.bad_loss or outcome.bad_norm)
            self.precision.step(self.optimizer, taken, outcome.dropped)
        self.non_finite.put_back(outcome.dropped)
        if isinstance(steps := getattr(self.model, "global_step", None), Tensor):  # OpenPCDet's buffer
            steps += outcome.taken
        if self.average is not None:
            self.average.update(self.model, outcome.taken)

    def settle(self) -> None:
        """Read what the last step has come to, if that was not done, and count it. All ranks call this together."""
        outcome, self.unread = self.unread, None
        if outcome is None:
            return
        self.must_stop = outcome.stop
        self.place = outcome.after(self.place)
        self._settled.append(outcome)
        if outcome.was_dropped:
            self.non_finite.handle(outcome.findings(), self.place, outcome.number)
            return
        self.precision.note(overflowed=outcome.overflowed)
        if outcome.overflowed:
            scale = self.precision.scaler.get_scale()
            get_logger().warning(
                "a gradient overflowed in float16: step skipped (%d so far), loss scale %g", self.place.skipped, scale
            )

    def _backward(self, group: list[Batch]) -> list[tuple[list[str], Tensor]]:
        """Forward and backward passes; of each micro-batch the names and values of the loss, its terms and the metrics.

        A rank whose loss is no number goes on to the end, since the others wait for its gradients.
        """
        rows = []
        counted = self._counted(group)
        for i, batch in enumerate(group):
            with self._reduced(last=i == len(group) - 1):
                with self.times.phase("forward"):
                    with self.precision.autocast(), counted():
                        output = self.runner(batch)
                    loss = torch.stack([term.float() for term in output.losses.values()]).sum()
                with self.times.phase("backward"):
                    self.precision.backward(loss / len(group))
            rows.append(_scalars(loss, output))
        return rows

    def _counted(self, group: list[Batch]) -> Callable[[], AbstractContextManager]:
        """What each forward pass runs in, so that losses are divided by as many positives as the settings say.

        To count over several micro-batches each runs forward once more, which leaves no trace in the model.
        """
        if not self.settings.global_normalizer:
            return contextlib.nullcontext
        if len(group) == 1:
            return counting_over_ranks
        counts, buffers = StepCounts(), [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with self.times.phase("forward"), torch.no_grad():
            for batch in group:
                with self.precision.autocast(), counts.noting():
                    self.model(batch)
            counts.exchange()
            for buffer, before in buffers:
                buffer.copy_(before)
        self._seed()  # the same draws again
        return counts.dividing

    def _seed(self) -> None:
        seed_everything(self.options.seed, ranks.rank(), self.place.epoch, self.place.step)

    def _reduced(self, last: bool) -> AbstractContextManager:
        """Ranks exchange gradients with the last micro-batch of a step only."""
        if last or not isinstance(self.runner, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.runner.no_sync()

    def _clip(self) -> Tensor:
        """Limit the gradient's values, then its norm; returns the norm before both, ()."""
        self.precision.unscale(self.optimizer)
        parameters = list(self.model.parameters())
        limit = self.settings.grad_norm_clip or math.inf
        if self.settings.grad_value_clip is None:
            return nn.utils.clip_grad_norm_(parameters, limit)
        norm = nn.utils.clip_grad_norm_(parameters, math.inf)
        nn.utils.clip_grad_value_(parameters, self.settings.grad_value_clip)
        nn.utils.clip_grad_norm_(parameters, limit)
        return norm

    def _step_and_report(self, batches: Iterator[Batch], progress: Progress) -> None:
        self.times.start_step()
        group = [next(batches) for _ in range(self.plan.micro_batches(self.place.epoch, self.place.step))]
        data_seconds = self.times.have_data()
        outcome = self.take_step(group)
        steps = self._steps()
        outcome.data_seconds, outcome.step_seconds = data_seconds, self.times.end_step(steps)
        self.profiler.step()
        self._report(progress)
        if not ranks.is_main() or self.must_stop or not self.keeper.is_due(steps):
            return
        if self.unread is None or not self.unread.was_dropped:
            self.keeper.save_due(self.state(), steps)

    def _report(self, progress: Progress) -> None:
        """Tell of the steps whose numbers were read since the last call."""
        while self._settled:
            outcome = self._settled.popleft()
            values = outcome.values()
            steps = outcome.epoch * self.plan.steps_per_epoch + outcome.number + 1
            progress.step(
                outcome.epoch,
                outcome.number,
                self.place.it,
                loss=values["train/loss"],
                lr=outcome.lr,
                data=outcome.data_seconds,
                forward=outcome.step_seconds,
                accuracy=values.get("train/accuracy"),
            )
            if math.isfinite(values["train/loss"]):
                skipped = {"train/skipped_steps": self.place.skipped} if self.precision.tolerates_overflow() else {}
                self.tracker.scalars({**values, **skipped}, steps)
            self._report_times()
            if (outcome.number + 1) % self.options.log_interval == 0:
                self._close_interval(steps)

    def _report_times(self) -> None:
        """Pass on the times of the steps that the device has finished."""
        for report in self.times.read():
            self.tracker.scalars(scalars(report, self.plan.samples_per_step, self.plan.world), report.step)
            self.speed.add(report)

    def _close_interval(self, steps: int) -> None:
        usage = self.usage.read()
        self.tracker.scalars(usage, steps)
        self.tracker.close_interval(steps)
        self.speed.tell(usage)

    def _steps(self) -> int:
        """Steps of the run so far, taken or not."""
        return self.place.epoch * self.plan.steps_per_epoch + self.place.step

    def _leave(self, progress: Progress) -> None:
        """Save a checkpoint of the step that was the last before a signal's end."""
        self.settle()
        self._report(progress)
        name = self.signals.received or "a signal to another process"
        get_logger().info(
            "Stopped by %s after step %d of epoch %d; the same command goes on from there",
            name, self.place.step, self.place.epoch + 1,
        )  # fmt: skip
        self._close_interval(self._steps())
        if ranks.is_main():
            self.keeper.save_step(self.state())

    def _end_epoch(self) -> bool:
        """Evaluate and save, where that is due. Returns whether the run stops early."""
        is_last = self.place.epoch + 1 == self.settings.num_epochs
        if self.monitor is not None and self.monitor.is_due(self.place.epoch + 1, is_last) and ranks.is_main():
            self.keeper.save_latest(self.state())  # a run that ends in the evaluation begins again with that
        self.place.epoch += 1
        self.place.step = 0
        stops_early = self._evaluate(is_last)
        self._close_interval(self._steps())
        due = is_last or stops_early or self.place.epoch % self.options.checkpoint_epochs == 0
        if ranks.is_main() and due:
            self.keeper.save_epoch(self.state())
        return stops_early

    def _evaluate(self, is_last: bool) -> bool:
        """Ask the monitor, which sees the averaged weights where there are some."""
        if self.monitor is None:
            return False
        with self.average.in_place_of(self.model) if self.average is not None else contextlib.nullcontext():
            verdict = self.monitor.after_epoch(self.place.epoch, is_last)
        self.tracker.values(verdict.metrics, self._steps())
        if verdict.improved and ranks.is_main():
            self.keeper.save_best(self.state())
        return verdict.stop

    def state(self) -> dict[str, Any]:
        """A checkpoint: OpenPCDet's keys, and beside them what an exact resume needs; tensors and plain types."""
        place = self.place if self.unread is None else self.unread.after(self.place)
        return {
            **{key: getattr(place, name) for name, key in PLACE_KEYS.items()},
            "model_state": {name: value.cpu() for name, value in self.model.state_dict().items()},
            "optimizer_state": self.optimizer.state_dict(),
            "version": VERSION,
            "sampler": sampler_state(self.plan, place),
            "steps_per_epoch": self.plan.steps_per_epoch,
            "total_steps": self.total_steps,
            "seed": self.options.seed,
            "scaler": self.precision.state_dict(),
            "ema": self.average.state_dict() if self.average is not None else {},
            "best": self.monitor.state_dict() if self.monitor is not None else {},
            "config": self.options.config_text,
            "versions": library_versions(),
        }

    def resume(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint, ours or OpenPCDet's. Raises ``ValueError`` if it does not fit the model."""
        load_weights(self.model, checkpoint, path)
        if not checkpoint.get("optimizer_state"):
            raise ValueError(f"{path} holds weights alone; start from it with --pretrained_model")
        load_optimizer_state(self.optimizer, checkpoint["optimizer_state"])
        self.precision.load_state_dict(checkpoint.get("scaler") or {})
        if self.average is not None:
            self.average = WeightAverage(self.model, self.average.decay)  # of these weights, if the file has none
            self.average.load_state_dict(checkpoint.get("ema") or {})
        if self.monitor is not None:
            self.monitor.load_state_dict(checkpoint.get("best") or {})
        self.place = place_of(checkpoint, self.plan)
        announce_changes(checkpoint, self.state(), self.schedule(self.place.it).lr)
        self.tracker.resume(self._steps())

    def _announce(self) -> None:
        plan, logger = self.plan, get_logger()
        logger.info(
            "%d scenes, %d process(es), %d scenes a step, %d steps an epoch, %d epochs on %s",
            plan.length, plan.world, plan.samples_per_step, plan.steps_per_epoch, self.settings.num_epochs, self.device,
        )  # fmt: skip
        logger.info("%s", describe_batch(self.settings, plan.world, self.unscaled))
        if plan.length < plan.samples_per_step:
            logger.warning(
                "The training set has %d scenes, fewer than the global batch of %d: a step sees no more than those",
                plan.length, plan.samples_per_step,
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
            first_step=self._steps(),
            bar=self.options.bar and ranks.is_main(),
            interval=self.options.log_interval,
        )


def _scalars(loss: Tensor, output: TrainOutput) -> tuple[list[str], Tensor]:
    """All numbers of a micro-batch in one tensor, so that they cross from the device together."""
    named = {**output.losses, **output.metrics, "loss": loss}
    return list(named), torch.stack([v.detach().float().reshape(()).to(loss.device) for v in named.values()])
