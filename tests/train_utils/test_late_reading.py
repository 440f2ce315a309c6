"""The host that runs a step ahead of the device, as on a GPU, trains as one that reads every step at once."""

from dataclasses import replace

import pytest
import torch
from engine_fakes import FakeScenes, fresh_model, weights

from pcdet.train_utils.checkpoint import find_newest, load_checkpoint
from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.non_finite import NonFiniteLoss
from pcdet.train_utils.optimizers import build_optimizer, can_skip_on_device
from pcdet.train_utils.outcome import Readback
from pcdet.train_utils.precision import Precision
from pcdet.train_utils.settings import Optimization

SETTINGS = Optimization(
    batch_size_per_gpu=2, num_epochs=3, lr=0.05, fused=True, ema_decay=0.9, bn_momentum=0.5, decay_samples=7
)
BAD = 4  # the scene that holds a NaN, where one does


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Pictures are tested where they are drawn."""
    monkeypatch.setattr("pcdet.train_utils.tracking.draw_history", lambda history, folder: None)


def trainer(folder, late, *, settings=SETTINGS, bad=(), **options) -> Trainer:
    given = {"seed": 3, "log_interval": 2, "reads_late": late, **options}
    return Trainer(fresh_model(), FakeScenes(10, bad=bad), settings, RunOptions(folder, torch.device("cpu"), **given))


def with_float16(run: Trainer, overflows: set[int]) -> Trainer:
    """The run with a loss scale; the gradients of some steps overflow."""
    run.precision = Precision(torch.device("cpu"), torch.float16, loss_scale=64.0)
    take = run.take_step

    def step(group):
        now = run.place.epoch * run.plan.steps_per_epoch + run.place.step
        handle = run.model.last.weight.register_hook(lambda g: g * torch.inf if now in overflows else g)
        outcome = take(group)
        handle.remove()
        return outcome

    run.take_step = step
    return run


def assert_equal_runs(a: Trainer, b: Trainer) -> None:
    """All that a run leaves, to the bit."""
    first, second = a.state(), b.state()
    for key in ("model_state", "ema", "optimizer_state", "scaler", "epoch", "step", "it", "sampler"):
        assert str(first[key]) == str(second[key]), key
    for name, value in first["model_state"].items():
        assert torch.equal(value, second["model_state"][name]), name
    curves, others = ({k: v for k, v in run.tracker.history.curves.items() if "train/" in k} for run in (a, b))
    assert str(curves) == str(others) and curves
    assert a.tracker.history.curves["meta_data/learning_rate"] == b.tracker.history.curves["meta_data/learning_rate"]


@pytest.mark.parametrize("case", ["finite", "skipped", "overflown", "both", "accumulated"])
def test_reading_late_changes_nothing(tmp_path, case):
    runs = []
    for late in (False, True):
        options = {"bad": [BAD], "nan_policy": "skip"} if case in ("skipped", "both") else {}
        settings = replace(SETTINGS, accumulation_steps=2) if case == "accumulated" else SETTINGS
        run = trainer(tmp_path / str(late), late, settings=settings, **options)
        assert run.reads_late is late
        if case in ("overflown", "both"):
            run = with_float16(run, {0, 6, 7})
        assert run.fit()
        runs.append(run)
    assert_equal_runs(*runs)
    place = runs[1].place
    assert (place.non_finite, place.skipped > 0) == (3 * ("bad" in options), case in ("overflown", "both"))
    assert place.it + place.skipped + place.non_finite == runs[1].total_steps
    assert all(run.model.global_step.tolist() == [place.it] for run in runs), "steps that were taken"


def test_numbers_are_read_when_the_next_gradients_are_there(tmp_path, monkeypatch):
    """But for those of an epoch's last step, which the evaluation waits for."""
    run = trainer(tmp_path, late=True)
    asked, read, backward, plain = [], [], run._backward, Readback.read
    monkeypatch.setattr(run, "_backward", lambda group: asked.append(1) or backward(group))
    monkeypatch.setattr(Readback, "read", lambda self: read.append(len(asked)) or plain(self))
    run.fit()
    assert read == [2, 3, 4, 5, 5, 7, 8, 9, 10, 10, 12, 13, 14, 15, 15]


def test_a_bad_number_stops_the_run_before_any_weight_moves(tmp_path):
    before = []
    run = trainer(tmp_path, late=True, bad=[BAD])
    update = run._update

    def noting(outcome):
        before.append(weights(run.model))
        update(outcome)

    run._update = noting
    with pytest.raises(NonFiniteLoss, match=r"cls_loss nan.*Scenes: .*00000" + str(BAD)):
        run.fit()
    for name, value in run.model.named_parameters():
        assert torch.equal(value, before[-1][name]) and value.isfinite().all(), name
    dumped = load_checkpoint(tmp_path / "non_finite_batch_rank0.pth")
    assert f"00000{BAD}" in dumped["frame_id"] and dumped["non_finite"]["step"] == len(before) - 1


@pytest.mark.parametrize("overflows", [set(), {3, 4, 8}], ids=["finite", "overflown"])
@pytest.mark.parametrize("steps", [1, 4, 5])
def test_a_run_goes_on_from_a_step_that_was_not_read_when_it_was_saved(tmp_path, steps, overflows):
    whole = with_float16(trainer(tmp_path / "whole", late=True), overflows)
    whole.fit()
    cut = with_float16(trainer(tmp_path / "cut", late=True, checkpoint_steps=steps), overflows)
    save, saved = cut.keeper.save_step, []

    class Killed(Exception):
        pass

    def save_and_die(state):
        saved.append(cut.unread is not None)
        save(state)
        raise Killed

    cut.keeper.save_step = save_and_die
    with pytest.raises(Killed):
        cut.fit()
    assert saved == [steps != 5]  # the last of an epoch has been read
    path, checkpoint = find_newest(tmp_path / "cut" / "ckpt")
    assert (checkpoint["epoch"], checkpoint["step"]) == (0, steps)
    second = with_float16(trainer(tmp_path / "cut", late=True), overflows)
    second.resume(checkpoint, path)
    second.fit()
    first, other = whole.state(), second.state()
    for key in ("optimizer_state", "scaler", "it", "ema", "skipped_steps"):
        assert str(first[key]) == str(other[key]), key
    assert all(torch.equal(v, other["model_state"][name]) for name, v in first["model_state"].items())


def test_a_dropped_step_is_not_saved(tmp_path):
    """The weights are those of the step before; whether the run goes on is decided later, by all ranks together."""
    run = trainer(tmp_path, late=True, bad=[BAD], nan_policy="skip", checkpoint_steps=1)
    saved, save = [], run.keeper.save_step
    run.keeper.save_step = lambda state: saved.append(state) or save(state)
    run.fit()
    assert len(saved) == 15 - 3
    assert all(s["it"] + s["non_finite_steps"] == s["epoch"] * 5 + s["step"] for s in saved)


def test_a_signal_ends_the_run_after_a_step_that_is_counted(tmp_path):
    run = trainer(tmp_path, late=True)
    take = run.take_step

    def step(group):
        if run.place.step == 2:
            run.signals.received = "SIGUSR1"
        return take(group)

    run.take_step = step
    assert not run.fit()
    checkpoint = find_newest(tmp_path / "ckpt")[1]
    assert checkpoint["step"] == checkpoint["it"] == 4, "one step later than where the host waits"


@pytest.mark.parametrize("name, fused, able", [("adam", True, True), ("adam", False, False), ("sgd", True, False)])
def test_only_optimisers_that_leave_out_a_step_by_themselves_run_ahead(tmp_path, name, fused, able):
    settings = replace(SETTINGS, optimizer=name, fused=fused)
    assert can_skip_on_device(build_optimizer(fresh_model(), settings)) is able
    assert trainer(tmp_path, late=True, settings=settings).reads_late is able
    assert trainer(tmp_path, late=None).reads_late is False, "on a CPU"
