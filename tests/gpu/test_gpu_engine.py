"""The engine on a GPU: precisions, options that change no numbers, resuming, synchronised batch norm over NCCL."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_fakes import FakeScenes, fresh_model

from pcdet.train_utils.checkpoint import load_checkpoint
from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.settings import Optimization

pytestmark = pytest.mark.gpu
PLAIN = Optimization(num_epochs=2, batch_size_per_gpu=2, optimizer="adam_onecycle", lr=0.01)


def train(folder: Path, device: torch.device, settings: Optimization, **options) -> dict[str, torch.Tensor]:
    """The weights after two epochs, on the CPU."""
    trainer = Trainer(fresh_model(dropout=0.0), FakeScenes(8), settings, RunOptions(folder, device, **options))
    assert trainer.fit()
    return {name: value.cpu() for name, value in trainer.model.state_dict().items()}


def assert_near(found: dict, wanted: dict, rtol: float) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=rtol, msg=lambda text, n=name: f"{n}: {text}")


def test_training_is_that_of_a_cpu(tmp_path, accelerator):
    wanted = train(tmp_path / "cpu", torch.device("cpu"), PLAIN)
    assert_near(train(tmp_path / "gpu", accelerator, PLAIN), wanted, 1e-3)


@pytest.mark.parametrize("changes", [{"fused": False}, {"channels_last": True}, {"accumulation_steps": 2}], ids=str)
def test_options_that_change_no_numbers(tmp_path, accelerator, changes):
    base = replace(PLAIN, batch_size_per_gpu=4) if "accumulation_steps" in changes else PLAIN
    frozen = {"freeze_bn": True}  # a batch norm sees micro-batches
    wanted = train(tmp_path / "plain", accelerator, replace(base, **frozen))
    assert_near(train(tmp_path / "changed", accelerator, replace(PLAIN, **frozen, **changes)), wanted, 1e-4)


@pytest.mark.parametrize("precision", [{}, {"use_amp": True}, {"ema_decay": 0.9}], ids=str)
def test_reading_a_step_late_changes_no_numbers(tmp_path, accelerator, precision):
    settings = replace(PLAIN, fused=True, **precision)
    wanted = train(tmp_path / "at once", accelerator, settings, reads_late=False)
    assert_near(train(tmp_path / "late", accelerator, settings, reads_late=True), wanted, 1e-6)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mixed_precision_trains_and_keeps_its_scale(tmp_path, accelerator, dtype):
    if accelerator.type == "cpu" and dtype == "fp16":
        pytest.skip("a CPU has no fast float16")
    settings = replace(PLAIN, use_amp=True, amp_dtype=dtype)
    assert all(v.isfinite().all() for v in train(tmp_path, accelerator, settings).values())
    saved = load_checkpoint(tmp_path / "ckpt" / "checkpoint_epoch_2.pth")
    assert ("scale" in saved["scaler"]) == (dtype == "fp16")


def test_a_resumed_run_ends_the_same(tmp_path, accelerator):
    wanted = train(tmp_path / "whole", accelerator, PLAIN)
    first = Trainer(fresh_model(dropout=0.0), FakeScenes(8), PLAIN, RunOptions(tmp_path / "cut", accelerator))
    take, taken = first.take_step, []

    def step(group):
        taken.append(1)
        if len(taken) == 5:
            first.signals.received = "SIGUSR1"
        return take(group)

    first.take_step = step
    assert not first.fit()
    path = next((tmp_path / "cut" / "ckpt").glob("*.pth"))
    second = Trainer(fresh_model(dropout=0.0), FakeScenes(8), PLAIN, RunOptions(tmp_path / "cut", accelerator))
    second.resume(load_checkpoint(path), path)
    assert second.fit()
    assert_near({k: v.cpu() for k, v in second.model.state_dict().items()}, wanted, 1e-6)


def test_synchronised_batch_norm(accelerator, run_ranks):
    if accelerator.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    run_ranks(Path(__file__).with_name("norm_job.py"), accelerator.type)
