"""The block OPTIMIZATION."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pcdet.utils.registry import construct


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """How a model is trained: the keys of OPTIMIZATION in lower case, with their defaults.

    Options of optimisers that are not chosen may stand in a YAML (OpenPCDet's files hold them all) and are checked,
    but have no effect.
    """

    batch_size_per_gpu: int = 4
    num_epochs: int = 80
    optimizer: Literal["adam_onecycle", "adam_cosineanneal", "adam_staircase", "adam", "sgd"] = "adam_onecycle"
    lr: float = 0.003
    weight_decay: float = 0.01
    grad_norm_clip: float | None = 10.0
    # Precision: float16 on a GPU, bfloat16 on a CPU.
    use_amp: bool = False
    loss_scale_fp16: float = 65536.0
    # Micro-batches whose gradients are averaged before the optimiser steps.
    accumulation_steps: int = 1
    # sgd
    momentum: float = 0.9
    # adam_onecycle, adam_cosineanneal
    moms: Sequence[float] = (0.95, 0.85)
    pct_start: float = 0.4
    div_factor: float = 10.0
    betas: Sequence[float] = (0.9, 0.99)
    warmup_iter: int = 0
    # adam, sgd: epochs at which the rate is multiplied by lr_decay
    decay_step_list: Sequence[int] = ()
    lr_decay: float = 0.1
    lr_warmup: bool = False
    warmup_epoch: int = 1
    # smallest learning rate of adam, sgd and adam_staircase
    lr_clip: float = 1e-7
    # adam_staircase: steps counted in samples
    decay_rate: float = 0.7
    decay_samples: int = 200000
    # momentum of every BatchNorm layer and its own staircase; None leaves the layers as they are
    bn_momentum: float | None = None
    bn_decay: float = 0.5
    bn_momentum_clip: float = 0.01

    def __post_init__(self):
        positive = ("batch_size_per_gpu", "num_epochs", "lr", "accumulation_steps", "decay_samples", "div_factor")
        for name in positive:
            self._require(name, getattr(self, name) > 0, "should be above 0")
        self._require("weight_decay", self.weight_decay >= 0, "should not be negative")
        self._require("pct_start", 0 <= self.pct_start <= 1, "should lie between 0 and 1")
        self._require("moms", len(self.moms) == 2, "should be two numbers")
        self._require("betas", len(self.betas) == 2, "should be two numbers")
        steps = list(self.decay_step_list)
        self._require("decay_step_list", steps == sorted(steps), "should be in rising order")

    def _require(self, name: str, holds: bool, message: str) -> None:
        if not holds:
            raise ValueError(f"OPTIMIZATION.{name.upper()} is {getattr(self, name)}; it {message}")

    @classmethod
    def from_settings(cls, block: Mapping[str, Any]) -> "Optimization":
        """The block OPTIMIZATION of a YAML. Raises ``ValueError`` for an unknown key, with the nearest name."""
        return construct(cls, dict(block), where="OPTIMIZATION")
