"""Learning rate, momentum and BatchNorm momentum as pure functions of the step.

Nothing here is counted up: a schedule is a function of the number of optimiser steps taken, so a resumed run follows
the curve of one that never stopped.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pcdet.train_utils.settings import Optimization


class StepValues(NamedTuple):
    """What holds during one optimiser step; ``None`` leaves a value as it is."""

    lr: float
    momentum: float | None = None  # first beta of Adam
    bn_momentum: float | None = None


class RunLength(NamedTuple):
    """The sizes that turn epochs and samples into steps."""

    total_steps: int
    steps_per_epoch: int
    samples_per_step: int  # over all ranks and micro-batches


Schedule = Callable[[int], StepValues]


def cosine(start: float, end: float, fraction: float) -> float:
    """From ``start`` to ``end`` along half a cosine; ``fraction`` is held within 0 and 1."""
    fraction = min(max(fraction, 0.0), 1.0)
    return end + (start - end) / 2 * (1 + math.cos(math.pi * fraction))


def one_cycle(
    step: int, total_steps: int, lr: float, moms: Sequence[float], pct_start: float, div_factor: float
) -> StepValues:
    """Smith, "A disciplined approach to neural network hyper-parameters" (2018), with cosines.

    The rate rises from ``lr / div_factor`` to ``lr`` while momentum falls, then falls to ``lr / div_factor / 1e4``.
    A run too short for a rising part has the falling one alone.
    """
    peak = int(total_steps * pct_start)
    low = lr / div_factor
    if step < peak:
        return StepValues(cosine(low, lr, step / peak), cosine(moms[0], moms[1], step / peak))
    fraction = (step - peak) / max(total_steps - peak, 1)
    return StepValues(cosine(lr, low / 1e4, fraction), cosine(moms[1], moms[0], fraction))


def cosine_anneal(step: int, total_steps: int, lr: float, warmup_iter: int) -> StepValues:
    """A straight rise from a third of ``lr`` over ``warmup_iter`` steps, then half a cosine down to zero."""
    if step < warmup_iter:
        return StepValues(lr * (1 + 2 * step / warmup_iter) / 3)
    return StepValues(cosine(lr, 0.0, (step - warmup_iter) / max(total_steps - warmup_iter, 1)))


def step_decay(step: int, decay_steps: Sequence[int], lr: float, lr_decay: float, lr_clip: float) -> StepValues:
    """``lr`` times ``lr_decay`` for every passed step of ``decay_steps``, never below ``lr_clip``."""
    return StepValues(max(lr * lr_decay ** sum(step >= s for s in decay_steps), lr_clip))


def cosine_warmup(step: int, warmup_steps: int, lr: float, div_factor: float) -> StepValues:
    """The rise from ``lr / div_factor`` to ``lr`` before a step decay."""
    return StepValues(cosine(lr / div_factor, lr, step / warmup_steps))


def staircase(samples: int, start: float, rate: float, samples_per_stair: int, floor: float) -> float:
    """``start`` times ``rate`` for every ``samples_per_stair`` samples seen, never below ``floor``.

    The recipe of PointNet++'s published training script, for the learning rate and for the BatchNorm momentum.
    """
    return max(start * rate ** (samples // samples_per_stair), floor)


def build_schedule(settings: Optimization, length: RunLength) -> Schedule:
    """The schedule that belongs to the optimiser of ``settings``."""
    rates = _RATES[settings.optimizer](settings, length)
    if settings.bn_momentum is None:
        return rates

    def with_batch_norm(step: int) -> StepValues:
        samples = step * length.samples_per_step
        return rates(step)._replace(
            bn_momentum=staircase(
                samples, settings.bn_momentum, settings.bn_decay, settings.decay_samples, settings.bn_momentum_clip
            )
        )

    return with_batch_norm


def _one_cycle(settings: Optimization, length: RunLength) -> Schedule:
    s = settings
    return lambda step: one_cycle(step, length.total_steps, s.lr, s.moms, s.pct_start, s.div_factor)


def _cosine_anneal(settings: Optimization, length: RunLength) -> Schedule:
    return lambda step: cosine_anneal(step, length.total_steps, settings.lr, settings.warmup_iter)


def _staircase(settings: Optimization, length: RunLength) -> Schedule:
    s = settings
    return lambda step: StepValues(
        staircase(step * length.samples_per_step, s.lr, s.decay_rate, s.decay_samples, s.lr_clip)
    )


def _steps(settings: Optimization, length: RunLength) -> Schedule:
    s = settings
    warmup_steps = s.warmup_epoch * length.steps_per_epoch if s.lr_warmup else 0
    decay_steps = [epoch * length.steps_per_epoch for epoch in s.decay_step_list]

    def rates(step: int) -> StepValues:
        if step < warmup_steps:
            return cosine_warmup(step, warmup_steps, s.lr, s.div_factor)
        return step_decay(step, decay_steps, s.lr, s.lr_decay, s.lr_clip)

    return rates


_RATES: dict[str, Callable[[Optimization, RunLength], Schedule]] = {
    "adam_onecycle": _one_cycle,
    "adam_cosineanneal": _cosine_anneal,
    "adam_staircase": _staircase,
    "adam": _steps,
    "sgd": _steps,
}
