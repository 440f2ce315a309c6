"""The training loop: learning, resuming to the bit, accumulation, bad numbers."""

import gc
import logging
import tracemalloc
from dataclasses import replace

import pytest
import torch
from engine_fakes import FakeScenes, fresh_model, weights

from pcdet.train_utils.batches import BatchPlan
from pcdet.train_utils.checkpoint import find_newest, load_checkpoint
from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.non_finite import NonFiniteLoss
from pcdet.train_utils.precision import Precision
from pcdet.train_utils.settings import Optimization
from pcdet.utils.logging import get_logger

SETTINGS = Optimization(batch_size_per_gpu=2, num_epochs=4, lr=0.05)


def trainer(folder, *, settings=SETTINGS, scenes=None, model=None, **options) -> Trainer:
    given = RunOptions(folder, torch.device("cpu"), **{"seed": 3, "log_interval": 1, **options})
    return Trainer(model or fresh_model(), scenes or FakeScenes(), settings, given)


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Pictures are tested where they are drawn."""
    monkeypatch.setattr("pcdet.train_utils.tracking.draw_history", lambda history, folder: None)


@pytest.fixture
def log(caplog):
    logger = get_logger()
    before = logger.propagate, logger.level
    logger.propagate = True
    caplog.set_level(logging.INFO, logger=logger.name)
    yield caplog
    logger.propagate, logger.level = before


def assert_equal_weights(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_it_learns_and_leaves_openpcdets_keys(tmp_path):
    settings = replace(SETTINGS, num_epochs=20, batch_size_per_gpu=10, accumulation_steps=1)
    run = trainer(tmp_path, settings=settings, scenes=FakeScenes(50), model=fresh_model(dropout=0.0))
    run.fit()
    losses = run.tracker.history.curves["train/loss"][1]
    assert len(losses) == 100
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    saved = load_checkpoint(tmp_path / "ckpt" / "checkpoint_epoch_20.pth")
    assert {"epoch", "it", "model_state", "optimizer_state", "version"} <= saved.keys()
    assert (saved["epoch"], saved["it"]) == (20, 100)
    assert {
        "train/loss",
        "train/cls_loss",
        "train/accuracy",
        "meta_data/learning_rate",
    } <= run.tracker.history.curves.keys()


class Stop(Exception):
    pass


def interrupted(folder, steps, monkeypatch, **options):
    """A run that saves after ``steps`` steps and is then killed."""
    run = trainer(folder, **options)
    take = run.take_step

    def take_some(group):
        if run.place.epoch * run.plan.steps_per_epoch + run.place.step == steps:
            run.keeper.save_latest(run.state())
            raise Stop
        return take(group)

    monkeypatch.setattr(run, "take_step", take_some)
    with pytest.raises(Stop):
        run.fit()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [5, 8])
def test_resume_equals_never_stopped_e6(tmp_path, monkeypatch, steps, workers):
    """At an epoch's end (5) and in its middle (8): weights, moments and rates, to the bit."""
    whole = trainer(tmp_path / "whole")
    whole.fit()
    interrupted(tmp_path / "cut", steps, monkeypatch, workers=workers)
    path, checkpoint = find_newest(tmp_path / "cut" / "ckpt")
    assert checkpoint["it"] == steps
    second = trainer(tmp_path / "cut", model=fresh_model(dropout=0.3), workers=workers)
    second.resume(checkpoint, path)
    torch.manual_seed(12345)  # whatever happened to the global generator before
    second.fit()
    assert_equal_weights(weights(whole.model), weights(second.model))
    for a, b in zip(whole.optimizer.state.values(), second.optimizer.state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert whole.tracker.history.curves["train/loss"] == second.tracker.history.curves["train/loss"]
    assert (
        whole.tracker.history.curves["meta_data/learning_rate"]
        == second.tracker.history.curves["meta_data/learning_rate"]
    )


@pytest.mark.parametrize("optimizer", ["adam_onecycle", "adam_cosineanneal", "sgd"])
def test_e6_resume_equals_never_stopped_in_mixed_precision(tmp_path, monkeypatch, optimizer):
    """Rates, momenta and losses of a run that stopped after 7 of 20 steps."""
    settings = replace(SETTINGS, use_amp=True, optimizer=optimizer, ema_decay=0.9)
    whole = trainer(tmp_path / "whole", settings=settings)
    whole.fit()
    interrupted(tmp_path / "cut", 7, monkeypatch, settings=settings)
    path, checkpoint = find_newest(tmp_path / "cut" / "ckpt")
    second = trainer(tmp_path / "cut", settings=settings)
    second.resume(checkpoint, path)
    second.fit()
    assert_equal_weights(weights(whole.model), weights(second.model))
    assert_equal_weights(whole.average.state, second.average.state)
    groups = [
        [{k: g.get(k) for k in ("lr", "betas", "momentum")} for g in run.optimizer.param_groups]
        for run in (whole, second)
    ]
    assert groups[0] == groups[1]


def test_e5_draws_are_distinct_over_ranks_and_epochs_and_of_the_seed_alone(tmp_path):
    """Every scene of two ranks and two epochs draws other numbers; a rerun draws the same."""

    def draws(seed):
        found = []
        for rank in (0, 1):
            run = trainer(tmp_path, scenes=FakeScenes(8, seed=seed, noise=1.0))
            run.plan = BatchPlan(8, 2, seed=seed, rank=rank, world=2)
            found += [x for batch in run._loader() for x in batch["x"][:, 0].tolist()]
        return found

    first = draws(3)
    assert len(set(first)) == len(first) == 32  # 4 epochs of 8 scenes
    assert draws(3) == first != draws(4)


def test_memory_does_not_grow_over_epochs(tmp_path, monkeypatch):
    """Python's objects from the 5th epoch to the 20th; what stays of an epoch is a line in the history."""
    monkeypatch.setattr(get_logger(), "disabled", True)  # pytest would keep each line, which is no leak of a run
    tracemalloc.start()
    try:
        run = trainer(tmp_path, settings=replace(SETTINGS, num_epochs=20), log_interval=10**6, max_checkpoints=1)
        end, sizes = run._end_epoch, []
        run._end_epoch = lambda: (end(), gc.collect(), sizes.append(tracemalloc.get_traced_memory()[0]))[0]
        run.fit()
    finally:
        tracemalloc.stop()
    assert len(sizes) == 20
    assert sizes[-1] - sizes[4] < 15 * 5000, "bytes for 15 epochs"


def test_e6_a_changed_length_is_announced(tmp_path, log):
    first = trainer(tmp_path, settings=replace(SETTINGS, num_epochs=2))
    first.fit()
    path, checkpoint = find_newest(tmp_path / "ckpt")
    second = trainer(tmp_path, settings=replace(SETTINGS, num_epochs=6))
    second.resume(checkpoint, path)
    assert "length changed from 10 to 30 steps" in log.text
    assert "learning rate goes from" in log.text
    second.fit()
    assert second.place.it == 30


def test_e7_a_finished_run_says_so_and_stops(tmp_path, log):
    trainer(tmp_path).fit()
    again = trainer(tmp_path)
    path, checkpoint = find_newest(tmp_path / "ckpt")
    again.resume(checkpoint, path)
    before = weights(again.model)
    again.fit()
    assert "Finished already (4/4 epochs)" in log.text
    assert_equal_weights(before, weights(again.model))


def test_e7_a_changed_configuration_is_shown(tmp_path, log):
    trainer(tmp_path, config_text="LR: 0.1\nEPOCHS: 4\n").fit()
    path, checkpoint = find_newest(tmp_path / "ckpt")
    trainer(tmp_path, config_text="LR: 0.2\nEPOCHS: 4\n").resume(checkpoint, path)
    assert "-LR: 0.1\n+LR: 0.2" in log.text


def test_another_batch_size_continues_at_the_same_epoch(tmp_path, log):
    trainer(tmp_path, settings=replace(SETTINGS, num_epochs=2)).fit()
    path, checkpoint = find_newest(tmp_path / "ckpt")
    second = trainer(tmp_path, settings=replace(SETTINGS, batch_size_per_gpu=5))
    second.resume(checkpoint, path)
    assert (second.place.epoch, second.place.step, second.place.it) == (2, 0, 4)
    assert "An epoch had 5 steps" in log.text


def test_accumulation_equals_a_big_batch(tmp_path):
    """Without BatchNorm and dropout, two micro-batches of 2 give the gradient of one batch of 4."""
    plain = {"norm": False, "dropout": 0.0}
    big = trainer(
        tmp_path / "big",
        settings=replace(SETTINGS, batch_size_per_gpu=4),
        scenes=FakeScenes(8),
        model=fresh_model(**plain),
    )
    small = trainer(
        tmp_path / "small",
        settings=replace(SETTINGS, accumulation_steps=2),
        scenes=FakeScenes(8),
        model=fresh_model(**plain),
    )
    big.fit()
    small.fit()
    assert big.place.it == small.place.it == 8
    for name, value in weights(big.model).items():
        torch.testing.assert_close(value, weights(small.model)[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_positives", [False, True])
def test_counting_over_micro_batches_leaves_no_trace(tmp_path, by_positives):
    """Each runs forward once more. Where no loss counts, or all count alike, weights, running statistics and draws of
    dropout are those of a run that does not count, to the bit."""

    class Alike(FakeScenes):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "label": 1}

    runs = []
    for over_all in (False, True):
        settings = replace(SETTINGS, accumulation_steps=2, global_normalizer=over_all)
        model = fresh_model(by_positives=by_positives)
        runs.append(trainer(tmp_path / str(over_all), settings=settings, scenes=Alike(8), model=model))
        runs[-1].fit()
    assert_equal_weights(*(weights(run.model) for run in runs))
    assert runs[0].tracker.history.curves["train/loss"] == runs[1].tracker.history.curves["train/loss"]


@pytest.mark.parametrize("micro_batches, expected", [(7, [4, 3]), (3, [3]), (8, [4, 4])])
def test_e10_the_tail_of_an_accumulation_is_averaged_over_itself(tmp_path, monkeypatch, micro_batches, expected):
    """7 micro-batches, accumulate 4: 2 steps; the gradient of the second is the mean over 3."""
    plain = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "grad_norm_clip": None}
    settings = Optimization(batch_size_per_gpu=1, num_epochs=1, accumulation_steps=4, **plain)
    run = trainer(
        tmp_path, settings=settings, scenes=FakeScenes(micro_batches), model=fresh_model(norm=False, dropout=0.0)
    )
    steps, take = [], run.take_step

    def take_and_check(group):
        assert all(p.grad is None for p in run.model.parameters()) or steps  # nothing is left from an earlier epoch
        before = weights(run.model)
        twin = fresh_model(norm=False, dropout=0.0)
        twin.load_state_dict(before)
        sum(sum(twin(b).losses.values()) for b in group).div(len(group)).backward()
        out = take(group)
        for name, p in twin.named_parameters():
            torch.testing.assert_close(weights(run.model)[name], before[name] - 0.1 * p.grad, rtol=1e-5, atol=1e-6)
        steps.append(len(group))
        return out

    monkeypatch.setattr(run, "take_step", take_and_check)
    run.fit()
    assert steps == expected
    assert run.total_steps == len(expected)


def test_e1_a_last_batch_of_one_is_dropped_and_said(tmp_path, log):
    run = trainer(tmp_path, scenes=FakeScenes(5), settings=replace(SETTINGS, num_epochs=2))
    run.fit()
    assert run.place.it == 4
    assert "single scene: it is dropped" in log.text


def test_a_batch_larger_than_the_data_set_is_said(tmp_path, log):
    run = trainer(tmp_path, scenes=FakeScenes(5), settings=replace(SETTINGS, num_epochs=2, batch_size_per_gpu=8))
    run.fit()
    assert run.place.it == 2
    assert "has 5 scenes, fewer than the global batch of 8" in log.text


def test_e12_a_bad_number_stops_the_run_and_names_the_scene(tmp_path):
    settings = replace(SETTINGS, batch_size_per_gpu=1)
    run = trainer(tmp_path, scenes=FakeScenes(4, bad=[2]), settings=settings, model=fresh_model(norm=False))
    with pytest.raises(NonFiniteLoss, match=r"cls_loss nan.*Scenes: 000002"):
        run.fit()
    assert all(torch.isfinite(v).all() for v in weights(run.model).values())
    dumped = load_checkpoint(tmp_path / "non_finite_batch_rank0.pth")
    assert dumped["frame_id"] == ["000002"]
    assert torch.isnan(dumped["x"]).any()


def test_e11_an_overflow_skips_the_step_and_the_schedule_waits(tmp_path, log):
    run = trainer(tmp_path)
    run.precision = Precision(torch.device("cpu"), torch.float16, loss_scale=64.0)
    take = run.take_step
    seen = []

    def with_overflow(group):
        number = run.place.step + run.place.epoch * run.plan.steps_per_epoch
        handle = run.model.last.weight.register_hook(lambda g: g * torch.inf if number == 3 else g)
        before = weights(run.model)
        out = take(group)
        handle.remove()
        seen.append((out.lr, all(torch.equal(before[n], p) for n, p in run.model.named_parameters())))
        return out

    run.take_step = with_overflow
    run.fit()
    assert [unchanged for _, unchanged in seen].count(True) == 1 and seen[3][1]
    assert seen[4][0] == seen[3][0] != seen[2][0]
    assert run.precision.scaler.get_scale() == 32.0
    assert (run.place.it, run.place.skipped) == (19, 1)
    assert "step skipped (1 so far), loss scale 32" in log.text
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_gradients_are_clipped(tmp_path):
    settings = Optimization(
        batch_size_per_gpu=2, num_epochs=1, optimizer="sgd", lr=1.0, momentum=0.0, weight_decay=0.0, grad_norm_clip=0.01
    )
    run = trainer(tmp_path, settings=settings)
    before = weights(run.model)
    batch = run.dataset.collate([run.dataset[i] for i in range(2)])
    out = run.take_step([batch])
    moved = torch.cat([(weights(run.model)[n] - before[n]).flatten() for n, _ in run.model.named_parameters()]).norm()
    assert out.values()["train/grad_norm"] > 0.01
    assert moved.item() == pytest.approx(0.01, rel=1e-3)


def test_mixed_precision_on_a_cpu_is_bfloat16(tmp_path):
    run = trainer(tmp_path, settings=replace(SETTINGS, use_amp=True))
    run.fit()
    assert run.precision.dtype is torch.bfloat16
    assert run.place.it == 20


def test_log_lines_have_openpcdets_form(tmp_path, log):
    trainer(tmp_path).fit()
    lines = [r.message for r in log.records if r.message.startswith("Train:")]
    assert len(lines) == 20
    assert lines[0].startswith("Train:    1/4 ( 25%) [   1/5 ( 20%)]  Loss: ")
    for word in ("LR: 5.000e-03", "Time cost: ", "Acc_iter 1  ", "Data time: ", "Forward time: ", "Batch time: "):
        assert word in lines[0]
