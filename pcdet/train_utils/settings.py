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
    # Epochs from one evaluation while training to the next; None: at the end alone. --eval_interval goes first.
    eval_interval: int | None = None
    optimizer: Literal["adam_onecycle", "adam_cosineanneal", "adam_staircase", "adam", "sgd"] = "adam_onecycle"
    lr: float = 0.003
    # How lr, which is meant for base_global_batch scenes a step, changes with the real global batch.
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    base_global_batch: int | None = None
    weight_decay: float = 0.01
    # Limits of the gradient, first of each of its values, then of its norm; None sets no limit.
    grad_value_clip: float | None = None
    grad_norm_clip: float | None = 10.0
    # Mixed precision; amp_dtype None is fp16 on a GPU and bf16 on a CPU.
    use_amp: bool = False
    amp_dtype: Literal["fp16", "bf16"] | None = None
    loss_scale_fp16: float = 65536.0
    # Moving average of the weights, which is what is evaluated; None keeps none.
    ema_decay: float | None = None
    # Micro-batches whose gradients are averaged before the optimiser steps.
    accumulation_steps: int = 1
    # Batch norms use their running statistics, which stay as they are; scale and shift are still learned.
    freeze_bn: bool = False
    # Losses that are divided by a number of positives count those of all ranks instead of each rank's own.
    global_normalizer: bool = False
    # The optimiser's update in one kernel; None does so where all weights lie on a GPU.
    fused: bool | None = None
    # Weights of 2-D convolutions in the memory order N H W C, which a GPU's half precision units want.
    channels_last: bool = False
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
        self._require("eval_interval", self.eval_interval is None or self.eval_interval > 0, "should be above 0")
        self._require("weight_decay", self.weight_decay >= 0, "should not be negative")
        self._require("pct_start", 0 <= self.pct_start <= 1, "should lie between 0 and 1")
        self._require("moms", len(self.moms) == 2, "should be two numbers")
        self._require("betas", len(self.betas) == 2, "should be two numbers")
        self._require("lr_scaling", self.lr_scaling in ("none", "linear", "sqrt"), "should be none, linear or sqrt")
        scaled = self.lr_scaling != "none"
        self._require("base_global_batch", (self.base_global_batch or 0) > 0 or not scaled, "is what LR_SCALING needs")
        self._require("grad_value_clip", self.grad_value_clip is None or self.grad_value_clip > 0, "should be above 0")
        self._require("amp_dtype", self.amp_dtype in (None, "fp16", "bf16"), "should be fp16 or bf16")
        self._require("ema_decay", self.ema_decay is None or 0 < self.ema_decay < 1, "should lie between 0 and 1")
        steps = list(self.decay_step_list)
        self._require("decay_step_list", steps == sorted(steps), "should be in rising order")

    def _require(self, name: str, holds: bool, message: str) -> None:
        if not holds:
            raise ValueError(f"OPTIMIZATION.{name.upper()} is {getattr(self, name)}; it {message}")

    @classmethod
    def from_settings(cls, block: Mapping[str, Any]) -> "Optimization":
        """The block OPTIMIZATION of a YAML. Raises ``ValueError`` for an unknown key, with the nearest name."""
        return construct(cls, dict(block), where="OPTIMIZATION")
