"""Mixed precision: float16 with a loss scale, or bfloat16."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

MOST_OVERFLOWS = 32  # in a row: from the largest scale of use, 2^24 or so, to one below 1


class Precision:
    """Runs the forward pass in the chosen precision and steps the optimiser if the step may be taken.

    ``dtype`` is ``None`` for full precision. Only float16 needs ``loss_scale``: its small gradients would vanish.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype | None = None, loss_scale: float = 65536.0):
        self.device = device
        self.dtype = dtype
        self.scaler = GradScaler(device.type, init_scale=loss_scale, enabled=dtype == torch.float16)
        self.overflows = 0  # steps in a row that were left out because a gradient overflowed

    @classmethod
    def mixed(cls, device: torch.device, loss_scale: float, dtype: str | None = None) -> "Precision":
        """Mixed precision with ``fp16`` or ``bf16``; ``None`` takes fp16 on a GPU and bf16 on a CPU.

        Raises ``ValueError`` for fp16 on a CPU, which has no fast arithmetic for it.
        """
        dtype = dtype or ("fp16" if device.type == "cuda" else "bf16")
        if dtype == "fp16" and device.type == "cpu":
            raise ValueError(
                "--amp_dtype fp16 needs a GPU: a CPU trains in bf16, or in full precision without --use_amp"
            )
        return cls(device, {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype], loss_scale)

    def autocast(self) -> AbstractContextManager:
        """The context of the forward pass."""
        return torch.autocast(self.device.type, dtype=self.dtype or torch.float32, enabled=self.dtype is not None)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of ``loss``, scaled where float16 needs it."""
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring the gradients to their true size, for clipping."""
        self.scaler.unscale_(optimizer)

    def tolerates_overflow(self) -> bool:
        """Is a gradient that is not finite a matter of the loss scale? Not when halving it again and again was no help.

        Equal on all ranks, which have exchanged their gradients.
        """
        return self.scaler.is_enabled() and self.overflows < MOST_OVERFLOWS

    def step(self, optimizer: Optimizer, taken: Tensor | bool, dropped: Tensor) -> None:
        """Step if the step is ``taken``: a bool, or one on the device for an optimiser that can be told so there.

        The scale is halved where it is not, and grows after many that are; for a ``dropped`` step, which no other scale
        would save, it stays. The scaler is not asked what it found, which would make the host wait.
        """
        if isinstance(taken, Tensor):
            optimizer.grad_scale, optimizer.found_inf = None, (~taken).float()
            optimizer.step()
            del optimizer.grad_scale, optimizer.found_inf
        elif taken:
            optimizer.step()
        if self.scaler.is_enabled():
            before = self._scale()
            self.scaler.update()
            self.scaler.update(torch.where(dropped, before, self._scale()))

    def _scale(self) -> Tensor:
        return self.scaler.scale(torch.ones((), device=self.device))

    def note(self, *, overflowed: bool) -> None:
        """Count the steps in a row that were left out because of the scale."""
        self.overflows = self.overflows + 1 if overflowed else 0

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its counters; empty without one."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved loss scale; one saved by a run without scale is passed over, and the reverse."""
        if state and self.scaler.is_enabled():
            self.scaler.load_state_dict(state)
