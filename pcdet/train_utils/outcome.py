"""What a training step has come to: numbers on a device until the host reads them, at once or a step later."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pcdet.structures.batch import Batch
from pcdet.train_utils.non_finite import Finding
from pcdet.train_utils.resume import Place
from pcdet.utils import distributed as ranks


class Readback:
    """Numbers that cross from a GPU while the host goes on; :meth:`read` waits for them alone, not for later work."""

    def __init__(self, values: Tensor):
        self._values = values
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.current_stream(values.device).record_event()
        else:
            self._copied = None

    def read(self) -> list[float]:
        """The numbers (K,)."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._values.tolist()


@dataclass
class Outcome:
    """A step whose gradients are there.

    On the device: ``taken``, whether all ranks may step, and ``dropped``, whether it is left out because of a number
    that is not finite. A gradient that overflowed in float16 (``tolerates``) is neither: the loss scale is to blame.
    """

    epoch: int
    number: int  # of the step in its epoch
    group: list[Batch]
    names: list[list[str]]  # of the numbers of each micro-batch
    tolerates: bool
    taken: Tensor  # () bool
    dropped: Tensor  # () bool
    numbers: Readback
    lr: float = math.nan
    data_seconds: float = 0.0
    step_seconds: float = 0.0

    @classmethod
    def of(
        cls,
        place: Place,
        group: list[Batch],
        rows: Sequence[tuple[list[str], Tensor]],  # of each micro-batch, the loss last
        norm: Tensor,  # () of the gradient
        *,
        tolerates: bool,
        signalled: bool,  # has this rank been told to stop?
    ) -> "Outcome":
        """Gather the numbers. All ranks call this together: each takes the step, or none does."""
        losses = torch.stack([values[-1] for _, values in rows])
        signal = torch.full_like(norm, signalled, dtype=torch.bool)
        flags = ranks.any_over_ranks(torch.stack([(~losses.isfinite()).any(), ~norm.isfinite(), signal]))
        bad = flags[:2].any()
        parts = [flags.double(), norm[None].double(), *(values.double() for _, values in rows)]
        return cls(
            place.epoch,
            place.step,
            group,
            [names for names, _ in rows],
            tolerates,
            taken=~bad,
            dropped=flags[0] if tolerates else bad,
            numbers=Readback(torch.cat(parts)),
        )

    @cached_property
    def _read(self) -> list[float]:
        return self.numbers.read()

    @property
    def bad_loss(self) -> bool:
        """On any rank."""
        return bool(self._read[0])

    @property
    def bad_norm(self) -> bool:
        """On any rank, hence on all: they have exchanged their gradients."""
        return bool(self._read[1])

    @property
    def stop(self) -> bool:
        """Has any rank been told to stop?"""
        return bool(self._read[2])

    @property
    def overflowed(self) -> bool:
        """Was the step left out because of float16's loss scale?"""
        return self.bad_norm and not self.bad_loss and self.tolerates

    @property
    def was_dropped(self) -> bool:
        return self.bad_loss or (self.bad_norm and not self.tolerates)

    @cached_property
    def _named(self) -> list[dict[str, float]]:
        """The numbers of each micro-batch."""
        numbers, named = self._read[4:], []
        for names in self.names:
            named.append(dict(zip(names, numbers, strict=False)))
            numbers = numbers[len(names) :]
        return named

    def values(self) -> dict[str, float]:
        """What is to be logged: means over the micro-batches, the gradient's norm, the learning rate."""
        named = self._named
        means = {f"train/{key}": sum(own[key] for own in named) / len(named) for key in named[0]}
        return {"meta_data/learning_rate": self.lr, **means, "train/grad_norm": self._read[3]}

    def findings(self) -> list[Finding]:
        """What is no number on this rank; may be empty though the step was dropped."""
        if self.bad_loss:
            pairs = zip(self.group, self._named, strict=True)
            return [Finding("the loss", b, own) for b, own in pairs if not math.isfinite(own["loss"])]
        if self.was_dropped:
            return [Finding("a gradient", batch, {"gradient norm": self._read[3]}) for batch in self.group]
        return []

    def after(self, place: Place) -> Place:
        """Where the run stands when this step is counted: the schedule waits for one that was not taken."""
        if self.was_dropped:
            return replace(place, non_finite=place.non_finite + 1, non_finite_in_row=place.non_finite_in_row + 1)
        if self.overflowed:
            return replace(place, skipped=place.skipped + 1, non_finite_in_row=0)
        return replace(place, it=place.it + 1, non_finite_in_row=0)
