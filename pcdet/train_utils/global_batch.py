"""The batch and the learning rate are one contract.

The global batch is the number of scenes that one optimiser step sees:

    global batch = scenes of a micro-batch (BATCH_SIZE_PER_GPU) x processes x micro-batches (ACCUMULATION_STEPS)

``--batch_size`` names the global batch, as in OpenPCDet, and the micro-batch follows from it. Processes are those that
really run, never the visible devices. Needs no torch, so that a command can refuse a number before it loads any.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from pcdet.train_utils.settings import Optimization

SCALINGS: dict[str, Callable[[float], float]] = {"none": lambda ratio: 1.0, "linear": float, "sqrt": math.sqrt}


def micro_batch(global_batch: int, world: int, accumulation_steps: int = 1) -> int:
    """Scenes of one micro-batch. Raises ``ValueError`` with the nearest valid numbers if it is not a whole one."""
    parts = world * accumulation_steps
    if global_batch < 1 or global_batch % parts:
        below = global_batch // parts * parts
        valid = [number for number in (below, below + parts) if number > 0]
        raise ValueError(
            f"--batch_size {global_batch} cannot be divided among {world} processes x {accumulation_steps} "
            f"micro-batches (OPTIMIZATION.ACCUMULATION_STEPS). Nearest: {' or '.join(map(str, valid))}"
        )
    return global_batch // parts


def require_global_batch(wanted: int | None, settings: Optimization, world: int) -> None:
    """Raise ``ValueError`` unless ``--batch_size``, if it was given, is what the settings and the processes make."""
    real = settings.batch_size_per_gpu * settings.accumulation_steps * world
    if wanted is not None and wanted != real:
        raise ValueError(
            f"--batch_size {wanted}, but {settings.batch_size_per_gpu} scenes (OPTIMIZATION.BATCH_SIZE_PER_GPU) x "
            f"{world} processes x {settings.accumulation_steps} micro-batches are {real}. Leave out one of the two"
        )


def with_scaled_rate(settings: Optimization, global_batch: int) -> Optimization:
    """Settings whose ``lr`` is the one for ``global_batch``.

    ``LR_SCALING: linear`` multiplies it by ``global_batch / BASE_GLOBAL_BATCH`` (Goyal et al., "Accurate, large
    minibatch SGD", 2017, sec. 2.1), ``sqrt`` by the square root of that (Krizhevsky, "One weird trick", 2014, sec. 5).
    """
    if settings.lr_scaling == "none" or settings.base_global_batch is None:
        return settings
    factor = SCALINGS[settings.lr_scaling](global_batch / settings.base_global_batch)
    return replace(settings, lr=settings.lr * factor)


def describe_batch(settings: Optimization, world: int, unscaled: Optimization) -> str:
    """One line for the log: the global batch with its factors, and the learning rate, old and new if it is scaled."""
    parts = (settings.batch_size_per_gpu, world, settings.accumulation_steps)
    text = (
        f"Global batch {math.prod(parts)} = {parts[0]} scenes x {parts[1]} process(es) x {parts[2]} micro-batch(es); "
        f"learning rate {settings.lr:.6g}"
    )
    if settings.lr == unscaled.lr:
        return text
    return f"{text} ({unscaled.lr:.6g} for a batch of {settings.base_global_batch}, scaled: {settings.lr_scaling})"
