"""A moving average of a model's weights, which generalises better than the last ones (Polyak and Juditsky, 1992)."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """The exponential moving average of all weights and buffers that are floating-point numbers.

    BatchNorm's running statistics are averaged like weights, so that they belong to the averaged weights; whole numbers
    (counters) are those of the model. The decay begins low, ``min(decay, (1 + n) / (10 + n))`` after ``n`` updates, so
    that the first weights do not linger.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        device = next(iter(self.state.values())).device
        self.updates = torch.zeros((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, model: nn.Module, taken: Tensor) -> None:
        """Take in the weights after an optimiser step, if it was ``taken`` (a bool on their device)."""
        self.updates += taken
        decay = ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        share = torch.where(taken, 1 - decay, 0.0)
        for name, value in model.state_dict().items():
            mean = self.state[name]
            if mean.is_floating_point():
                mean.lerp_(value.to(mean.dtype), share.to(mean.dtype))
            else:
                mean.copy_(value)

    @contextlib.contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """Within it, ``model`` has the averaged weights."""
        own = {name: value.detach().clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.state)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: tensors on the CPU and a number."""
        return {"updates": int(self.updates), "model_state": {name: value.cpu() for name, value in self.state.items()}}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue a saved average; an empty one changes nothing."""
        if not saved:
            return
        self.updates.fill_(saved["updates"])
        for name, value in saved["model_state"].items():
            self.state[name].copy_(value)


def state_to_evaluate(checkpoint: Mapping[str, Any]) -> dict[str, Tensor | Any]:
    """A checkpoint whose weights are the averaged ones, where the run kept an average."""
    average = checkpoint.get("ema")
    if not average:
        return dict(checkpoint)
    return {**checkpoint, "model_state": average["model_state"]}
