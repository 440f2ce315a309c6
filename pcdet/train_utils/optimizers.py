"""Optimisers of the YAMLs."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Adam, AdamW, Optimizer

from pcdet.train_utils.schedules import StepValues
from pcdet.train_utils.settings import Optimization


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Trainable parameters in OpenPCDet's order, first those outside BatchNorm, so that its optimiser states fit."""
    norms = {id(p) for m in batch_norms(model) for p in m.parameters(recurse=False)}
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ValueError(f"{type(model).__name__} has no parameter to train")
    groups = ([p for p in trainable if id(p) not in norms], [p for p in trainable if id(p) in norms])
    return [{"params": group} for group in groups]


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm layer of a model."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm)]


def train_mode(model: nn.Module, freeze_bn: bool) -> None:
    """Set a model to training; ``freeze_bn`` leaves its batch norms in evaluation, with their running statistics."""
    model.train()
    if freeze_bn:
        for norm in batch_norms(model):
            norm.eval()


def build_optimizer(model: nn.Module, settings: Optimization) -> Optimizer:
    """The optimiser that ``settings`` names.

    ``adam_onecycle`` and ``adam_cosineanneal`` decay the weights apart from the gradient (Loshchilov and Hutter,
    "Decoupled weight decay regularization", 2019), those of BatchNorm too, as OpenPCDet does; ``adam``,
    ``adam_staircase`` and ``sgd`` add the decay to the gradient.
    """
    groups = parameter_groups(model)
    fused = settings.fused
    if fused is None:
        fused = all(p.is_cuda for group in groups for p in group["params"])
    common = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": fused}
    if settings.optimizer == "adam_onecycle":
        return AdamW(groups, betas=(settings.moms[0], 0.99), **common)
    if settings.optimizer == "adam_cosineanneal":
        return AdamW(groups, betas=tuple(settings.betas), **common)
    if settings.optimizer == "sgd":
        return SGD(groups, momentum=settings.momentum, **common)
    return Adam(groups, **common)


def lay_channels_last(model: nn.Module) -> None:
    """Lay the weights of 2-D convolutions out as N H W C; their inputs follow by themselves. No value changes."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.to(memory_format=torch.channels_last)


def can_skip_on_device(optimizer: Optimizer) -> bool:
    """Can the optimiser be told by a tensor to leave a step out? Then the host need not know before.

    Fused ones can; but torch's SGD, told so at its very first step, keeps a momentum that was never filled.
    """
    return bool(optimizer.defaults.get("fused")) and not isinstance(optimizer, SGD)


def set_rates(optimizer: Optimizer, values: StepValues) -> None:
    """Set what the schedule says for the coming update."""
    for group in optimizer.param_groups:
        group["lr"] = values.lr
        if values.momentum is not None:
            group["betas"] = (values.momentum, group["betas"][1])


def set_norm_momentum(norms: list[_BatchNorm], values: StepValues) -> None:
    """Set what the schedule says for the coming forward passes."""
    if values.bn_momentum is not None:
        for norm in norms:
            norm.momentum = values.bn_momentum


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Take over the moments of a saved state; rates and decay stay those of the present settings.

    Raises ``ValueError`` if the saved state belongs to other parameters.
    """
    now = optimizer.state_dict()["param_groups"]
    saved = state["param_groups"]
    if [len(g["params"]) for g in now] != [len(g["params"]) for g in saved]:
        raise ValueError(
            "the checkpoint's optimizer_state belongs to other parameters: its groups hold "
            f"{[len(g['params']) for g in saved]} of them, this model's {[len(g['params']) for g in now]}. "
            "Start from the weights alone with --pretrained_model"
        )
    groups = [{**mine, "params": theirs["params"]} for mine, theirs in zip(now, saved, strict=True)]
    _require_shapes(optimizer, saved, state["state"])
    optimizer.load_state_dict({"state": state["state"], "param_groups": groups})


def _require_shapes(optimizer: Optimizer, saved: list[dict[str, Any]], moments: dict[int, Any]) -> None:
    for group, theirs in zip(optimizer.param_groups, saved, strict=True):
        for parameter, key in zip(group["params"], theirs["params"], strict=True):
            for name in ("exp_avg", "momentum_buffer"):
                moment = moments.get(key, {}).get(name)
                if moment is not None and moment.shape != parameter.shape:
                    raise ValueError(
                        f"the checkpoint's optimizer_state has the shape {tuple(moment.shape)} where the model's "
                        f"parameter has {tuple(parameter.shape)}. Start from the weights alone with --pretrained_model"
                    )
