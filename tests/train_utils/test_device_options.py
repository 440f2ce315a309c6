"""What makes training faster on a GPU changes no numbers: fused updates, channels last, one read a step."""

import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_fakes import FakeScenes, fresh_model

from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.optimizers import build_optimizer, lay_channels_last
from pcdet.train_utils.settings import Optimization

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))

from zoo import batch_of, simulated_scene, small_dataset, small_model  # noqa: E402

PLAIN = Optimization(num_epochs=2, batch_size_per_gpu=2, lr=0.01)


def weights_after(folder, settings):
    """Without batch norm: the gradient of a bias before one is rounding alone, which Adam makes as large as any."""
    model = fresh_model(norm=False, dropout=0.0)
    trainer = Trainer(model, FakeScenes(8), settings, RunOptions(folder, torch.device("cpu")))
    trainer.fit()
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("optimizer", ["adam_onecycle", "adam_cosineanneal", "adam", "sgd"])
def test_a_fused_update_moves_the_weights_alike(tmp_path, optimizer):
    settings = replace(PLAIN, optimizer=optimizer)
    fused = replace(settings, fused=True)
    assert build_optimizer(fresh_model(), fused).defaults["fused"] is True
    assert build_optimizer(fresh_model(), settings).defaults["fused"] is False, "weights on a CPU"
    wanted = weights_after(tmp_path / "plain", settings)
    torch.testing.assert_close(weights_after(tmp_path / "fused", fused), wanted, rtol=1e-5, atol=1e-6)


def test_channels_last_changes_no_loss_gradient_or_name():
    name = "synthetic_models/pointpillar_mini"
    batch = batch_of(small_dataset(name, [simulated_scene(0), simulated_scene(1)]))
    results = []
    for changed in (False, True):
        model = copy.deepcopy(small_model(name)).train()
        if changed:
            lay_channels_last(model)
            convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size[0] > 1]
            assert convolutions
            assert all(m.weight.is_contiguous(memory_format=torch.channels_last) for m in convolutions)
        losses = torch.stack(list(model(batch).losses.values()))
        losses.sum().backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((losses.detach(), gradients, list(model.state_dict())))
    (losses, gradients, names), (other_losses, other_gradients, other_names) = results
    assert other_names == names
    torch.testing.assert_close(other_losses, losses, rtol=1e-5, atol=1e-6)
    assert (other_gradients - gradients).norm() <= 5e-4 * gradients.norm(), "rounding"


def test_a_run_with_channels_last_goes_on_from_one_without(tmp_path):
    first = Trainer(
        fresh_model(dropout=0.0), FakeScenes(8), replace(PLAIN, num_epochs=1), RunOptions(tmp_path, torch.device("cpu"))
    )
    first.fit()
    second = Trainer(
        fresh_model(dropout=0.0),
        FakeScenes(8),
        replace(PLAIN, channels_last=True),
        RunOptions(tmp_path, torch.device("cpu")),
    )
    second.resume(first.state(), tmp_path / "checkpoint")
    assert second.fit() and second.place.epoch == 2
