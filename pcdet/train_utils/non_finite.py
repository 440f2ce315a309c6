"""What happens when a loss or a gradient is not a number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pcdet.structures.batch import Batch
from pcdet.train_utils.batches import describe_scenes
from pcdet.train_utils.checkpoint import save_checkpoint
from pcdet.train_utils.resume import Place
from pcdet.utils import distributed as ranks
from pcdet.utils.logging import get_logger


class NonFiniteLoss(ValueError):
    """The loss or a gradient is NaN or infinite; the message names the scenes and the terms."""


class Finding(NamedTuple):
    """Something that is not finite on this rank."""

    what: str  # "the loss", "a gradient"
    batch: Batch
    terms: Mapping[str, float]


@dataclass
class NonFinitePolicy:
    """Stop the run or skip the step, on all ranks together; either way no weight moves.

    ``stop`` raises :class:`NonFiniteLoss`. ``skip`` leaves the step out, puts back what the forward passes did to the
    model's buffers (running means of BatchNorm would stay NaN forever), and stops after ``limit`` such steps in a row.
    """

    folder: Path
    policy: Literal["stop", "skip"] = "stop"
    limit: int = 10
    _buffers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self):
        if self.policy not in ("stop", "skip"):
            raise ValueError(f"--nan_policy {self.policy}: it is stop or skip")
        if self.limit < 1:
            raise ValueError(f"--nan_limit {self.limit}: at least 1 step is skipped before the run stops")

    def before_step(self, model: nn.Module) -> None:
        """Note the buffers, if they may have to be put back."""
        if self.policy == "skip":
            self._buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]

    @torch.no_grad()
    def put_back(self, dropped: Tensor) -> None:
        """Give the buffers their values of before the step, if it is ``dropped`` (a bool on the device)."""
        for buffer, before in self._buffers:
            buffer.copy_(torch.where(dropped, before, buffer))

    def handle(self, found: list[Finding], place: Place, step: int) -> None:
        """Tell of a dropped step, number ``step`` of its epoch, which ``place`` has counted.

        All ranks call this together, with or without a finding of their own. Raises :class:`NonFiniteLoss` on every
        rank if the run is to stop; it tells what each rank found.
        """
        own = "\n".join(self._dump(f, place.epoch, step) for f in found)
        message = "\n".join(text for text in ranks.gather_objects(own) if text)
        if self.policy == "stop":
            raise NonFiniteLoss(
                f"{message}\nNo weight was changed. Look at these scenes, lower OPTIMIZATION.LR or GRAD_NORM_CLIP, "
                "train without --use_amp, or pass over such steps with --nan_policy skip"
            )
        if place.non_finite_in_row >= self.limit:
            raise NonFiniteLoss(
                f"{message}\nThis was the step number {self.limit} in a row (--nan_limit): the run stops"
            )
        get_logger().warning("%s\nThe step is skipped (%d so far)", message, place.non_finite)

    def _dump(self, found: Finding, epoch: int, step: int) -> str:
        """Write the batch and what is wrong with it to a file, and say all that is known."""
        path = self.folder / f"non_finite_batch_rank{ranks.rank()}.pth"
        terms = {key: float(value) for key, value in found.terms.items()}
        note = {"what": found.what, "terms": terms, "epoch": epoch, "step": step, "rank": ranks.rank()}
        save_checkpoint(path, {**{k: v for k, v in found.batch.items() if _is_plain(v)}, "non_finite": note})
        listed = ", ".join(f"{key} {value:g}" for key, value in terms.items())
        return (
            f"{found.what} is not finite in epoch {epoch + 1}, step {step + 1} (rank {ranks.rank()}): "
            f"{listed}. Scenes: {describe_scenes(found.batch)}. The batch is in {path}"
        )


def _is_plain(value: Any) -> bool:
    """Can a file that is read as data hold it?"""
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return isinstance(value, Tensor | int | float | str | bool | None)
