"""Mixed precision: heads, losses and boxes in float32, features in the short type, and a loss near the full one."""

import copy

import pytest
import torch
from torch import Tensor
from zoo import batch_of, simulated_scene, small_dataset, small_model

from pcdet.models import wiring

NAMES = ["synthetic_models/pointpillar_mini", "kitti_models/second_iou", "kitti_models/pv_rcnn"]


def tensors(value):
    """All tensors within tuples and lists."""
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


def loss_of(model, batch):
    return torch.stack(list(model(batch).losses.values())).sum()


@pytest.mark.parametrize("name", NAMES)
def test_heads_and_losses_are_float32_and_backbones_are_not(name, monkeypatch):
    model = copy.deepcopy(small_model(name)).train()
    batch = batch_of(small_dataset(name, [simulated_scene(0)]))
    seen = {}
    run = wiring.run

    def watch(model, steps, batch):
        out = run(model, steps, batch)
        seen.update(
            {slot: {t.dtype for t in tensors(result) if t.is_floating_point()} for slot, result in out[0].items()}
        )
        return out

    monkeypatch.setattr(wiring, "run", watch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = model(batch).losses
        assert torch.is_autocast_enabled("cpu"), "the caller's context is as it was"
    heads = [slot for slot in seen if slot.endswith("_head")]
    assert heads and all(seen[slot] == {torch.float32} for slot in heads)
    assert torch.bfloat16 in seen["backbone_2d"]
    assert {loss.dtype for loss in losses.values()} == {torch.float32}
    sum(losses.values()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_loss_is_near_that_of_full_precision():
    name = NAMES[0]
    model = copy.deepcopy(small_model(name)).train()
    batch = batch_of(small_dataset(name, [simulated_scene(0), simulated_scene(1)]))
    full = loss_of(model, batch).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = loss_of(model, batch).item()
    assert mixed == pytest.approx(full, rel=0.02) and mixed != full
