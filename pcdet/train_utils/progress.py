"""Progress of training: one bar an epoch on a terminal, log lines of OpenPCDet's form elsewhere."""

import math
import sys
import time
from typing import Any

from tqdm import tqdm

from pcdet.utils.logging import get_logger


class Meter:
    """The last value of a series, and the mean of those that are finite."""

    def __init__(self) -> None:
        self.last = 0.0
        self.total = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """Append a value."""
        self.last = value
        if math.isfinite(value):
            self.total += value
            self.count += 1

    @property
    def mean(self) -> float:
        """Mean of all values, 0 without any."""
        return self.total / max(self.count, 1)


class Progress:
    """Tells where a run stands: with ``bar`` by a tqdm bar an epoch, without by a line every ``interval`` steps."""

    def __init__(
        self, *, epochs: int, steps_per_epoch: int, samples_per_step: int, first_step: int, bar: bool, interval: int
    ):
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.samples_per_step = samples_per_step
        self.interval = interval
        self.with_bar = bar
        self.first_step = first_step  # steps of the whole run that were done before this process began
        self.started = time.monotonic()
        self.bar: Any = None
        self._reset()

    def _reset(self) -> None:
        self.loss, self.accuracy, self.data, self.forward, self.batch = (Meter() for _ in range(5))
        self.epoch_started = time.monotonic()

    def start_epoch(self, epoch: int, first_step: int) -> None:
        """Begin epoch ``epoch``, counted from 0, at one of its steps."""
        self._reset()
        self.epoch_first_step = first_step
        if self.with_bar:
            self.bar = tqdm(
                total=self.steps_per_epoch,
                initial=first_step,
                desc=f"epoch {epoch + 1}/{self.epochs}",
                unit="step",
                dynamic_ncols=True,
                file=sys.stderr,
            )

    def step(
        self,
        epoch: int,
        number: int,
        it: int,
        *,
        loss: float,
        lr: float,
        data: float,
        forward: float,
        accuracy: float | None = None,
    ) -> None:
        """Report a finished step: seconds spent waiting for data, and in forward, backward and the optimiser.

        ``accuracy`` is what models of whole clouds give; nothing is said of it without one.
        """
        if accuracy is not None:
            self.accuracy.add(accuracy)
        for meter, value in (
            (self.loss, loss),
            (self.data, data),
            (self.forward, forward),
            (self.batch, data + forward),
        ):
            meter.add(value)
        if self.bar is not None:
            self._update_bar(epoch, number, lr)
        elif (number + 1) % self.interval == 0 or number in (self.epoch_first_step, self.steps_per_epoch - 1):
            get_logger().info("%s", self.line(epoch, number, it, lr))

    def end_epoch(self, finished: int, it: int) -> None:
        """Close the bar and log the epoch's means; ``finished`` epochs are done by now."""
        if self.bar is None:
            return
        self.bar.close()
        self.bar = None
        if not self.batch.count:  # resumed behind the last step
            return
        mean_accuracy = f"accuracy {self.accuracy.mean:.4f}, " if self.accuracy.count else ""
        get_logger().info(
            "epoch %d/%d: loss %.4g, %s%.2f samples/s, step %d",
            finished, self.epochs, self.loss.mean, mean_accuracy, self.samples_per_second(), it,
        )  # fmt: skip

    def samples_per_second(self) -> float:
        """Scenes a second over all ranks, in this epoch."""
        return self.samples_per_step / max(self.batch.mean, 1e-9)

    def _remaining(self, epoch: int, number: int) -> tuple[float, float, float]:
        """Seconds that this run has taken, and that the epoch and the run have left."""
        done = epoch * self.steps_per_epoch + number + 1
        past = time.monotonic() - self.started
        pace = past / max(done - self.first_step, 1)
        left = self.epochs * self.steps_per_epoch - done
        return past, (self.steps_per_epoch - number - 1) * self.batch.mean, left * pace

    def _update_bar(self, epoch: int, number: int, lr: float) -> None:
        total_left = self._remaining(epoch, number)[2]
        self.bar.set_postfix_str(
            f"loss {self.loss.last:.4g} ({self.loss.mean:.3g}), lr {lr:.2e}, data {self.data.mean:.2f} s, "
            f"step {self.batch.mean:.2f} s, {self.samples_per_second():.1f} samples/s, all done in {clock(total_left)}",
            refresh=False,
        )
        self.bar.update()

    def line(self, epoch: int, number: int, it: int, lr: float) -> str:
        """A step in OpenPCDet's words; its "Forward time" is forward, backward and optimiser together."""
        past, epoch_left, all_left = self._remaining(epoch, number)
        epoch_past = time.monotonic() - self.epoch_started
        epochs, steps = self.epochs, self.steps_per_epoch
        return (
            f"Train: {epoch + 1:>4d}/{epochs} ({100 * (epoch + 1) / epochs:>3.0f}%) "
            f"[{number + 1:>4d}/{steps} ({100 * (number + 1) / steps:>3.0f}%)]  "
            f"Loss: {self.loss.last:#.4g} ({self.loss.mean:#.3g})  {self._accuracy()}LR: {lr:.3e}  "
            f"Time cost: {clock(epoch_past)}/{clock(epoch_left)} [{clock(past)}/{clock(all_left)}]  "
            f"Acc_iter {it:<10d}  "
            f"Data time: {self.data.last:.2f}({self.data.mean:.2f})  "
            f"Forward time: {self.forward.last:.2f}({self.forward.mean:.2f})  "
            f"Batch time: {self.batch.last:.2f}({self.batch.mean:.2f})"
        )

    def _accuracy(self) -> str:
        """The last step's and the epoch's mean, where there are any."""
        return f"Accuracy: {self.accuracy.last:.3f} ({self.accuracy.mean:.3f})  " if self.accuracy.count else ""


def clock(seconds: float) -> str:
    """Seconds as ``mm:ss`` or ``h:mm:ss``."""
    return tqdm.format_interval(seconds)
