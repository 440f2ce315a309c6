"""What is measured while a model trains: validation loss, the best value, early stopping."""

import pytest
import torch
from engine_fakes import FakeScenes, fresh_model, weights

from pcdet.train_utils.batches import evaluation_loader
from pcdet.train_utils.checkpoint import find_newest, load_checkpoint
from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.evaluate import Evaluator, evaluated_epochs
from pcdet.train_utils.settings import Optimization
from pcdet.train_utils.validation import Monitor, stopped_early, validation_loss

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Pictures are tested where they are drawn."""
    monkeypatch.setattr("pcdet.train_utils.tracking.draw_history", lambda history, folder: None)


def monitor(folder, model, scenes=None, **options):
    return Monitor(Evaluator(model, scenes or FakeScenes(5), CPU, batch_size=2), folder, **options)


def test_the_loss_is_the_mean_over_scenes_and_leaves_the_model_as_it_was():
    """5 scenes in batches of 2 weigh as 5 scenes in one batch; no dropout, running statistics untouched."""
    model, scenes = fresh_model(), FakeScenes(5)
    before = weights(model)
    found = validation_loss(model, evaluation_loader(scenes, 2, 0, CPU), CPU, seed=0)
    assert model.training and model.norm.training and model.drop.training
    assert all(torch.equal(before[name], value) for name, value in weights(model).items())
    model.norm.eval()
    model.drop.eval()
    terms = model(scenes.collate([scenes[i] for i in range(5)])).losses
    assert found["val/cls_loss"] == pytest.approx(terms["cls_loss"].item(), rel=1e-5)
    assert found["val/loss"] == pytest.approx(sum(terms.values()).item(), rel=1e-5)


def test_scenes_without_labels_are_an_error_that_says_so():
    scenes = FakeScenes(2)
    scenes.collate = lambda items: {k: v for k, v in FakeScenes.collate(items).items() if k != "label"}
    with pytest.raises(ValueError, match="--val_loss: the validation set has no 'label'"):
        validation_loss(fresh_model(), evaluation_loader(scenes, 2, 0, CPU), CPU, seed=0)


def judged(watch, values):
    return [watch._judge(epoch, {watch.metric: value}) for epoch, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    "metric, values, improved",
    [
        ("accuracy", [0.5, 0.5, 0.7, 0.6], [True, False, True, False]),
        ("val/loss", [0.5, 0.5, 0.7, 0.4], [True, False, False, True]),
        ("accuracy", [float("nan"), 0.1, float("nan"), 0.2], [False, True, False, True]),
    ],
)
def test_better_is_higher_or_lower_by_the_metrics_name(tmp_path, metric, values, improved):
    assert [v.improved for v in judged(monitor(tmp_path, fresh_model(), metric=metric), values)] == improved


def test_patience_counts_evaluations_without_gain_and_survives_a_checkpoint(tmp_path):
    watch = monitor(tmp_path, fresh_model(), metric="accuracy", patience=2)
    assert [v.stop for v in judged(watch, [0.5, 0.4, 0.6, 0.6])] == [False] * 4
    again = monitor(tmp_path, fresh_model(), metric="accuracy", patience=2)
    again.load_state_dict(watch.state_dict())
    assert again.best == watch.best and not again.is_exhausted()
    assert again._judge(5, {"accuracy": 0.3}).stop and again.is_exhausted()
    assert stopped_early(again.state_dict(), "accuracy", 2)
    assert not stopped_early(again.state_dict(), "accuracy", 3)
    assert not stopped_early(again.state_dict(), "val/loss", 2)


def test_it_evaluates_when_due_and_after_the_last_epoch(tmp_path):
    watch = monitor(tmp_path, fresh_model(), interval=3, split="val", with_loss=True)
    due = [bool(watch.after_epoch(epoch, is_last=epoch == 7).metrics) for epoch in range(1, 8)]
    assert due == [False, False, True, False, False, True, True]
    assert evaluated_epochs(tmp_path, "val") == watch.evaluated == {"3", "6", "7"}
    assert (tmp_path / "epoch_6" / "val" / "metrics.json").is_file()
    with pytest.raises(ValueError, match="at least 1"):
        monitor(tmp_path, fresh_model(), interval=0)


def run(folder, **options):
    settings = Optimization(batch_size_per_gpu=2, num_epochs=6, lr=0.05, ema_decay=0.9)
    trainer = Trainer(
        fresh_model(), FakeScenes(6), settings, RunOptions(folder, CPU, log_interval=1, max_checkpoints=1)
    )
    trainer.monitor = monitor(folder / "eval", trainer.model, metric="val/loss", with_loss=True, **options)
    return trainer


def test_the_best_checkpoint_is_never_removed_and_holds_the_averaged_weights_that_won(tmp_path):
    trainer = run(tmp_path)
    scripted = iter([0.5, 0.2, 0.3, 0.4, 0.3, 0.3])
    trainer.monitor._measure = lambda epoch: {"val/loss": next(scripted)}
    trainer.fit()
    assert sorted(p.name for p in (tmp_path / "ckpt").iterdir()) == [
        "best_model.pth",
        "checkpoint_epoch_6.pth",
        "latest_model.pth",  # written before the last evaluation
    ]
    best = load_checkpoint(tmp_path / "ckpt" / "best_model.pth")
    assert (best["epoch"], best["best"]["value"], best["ema"]["updates"]) == (2, 0.2, 6)
    assert trainer.tracker.history.curves["val/loss"] == ([3, 6, 9, 12, 15, 18], [0.5, 0.2, 0.3, 0.4, 0.3, 0.3])


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    trainer = run(tmp_path, patience=2)
    trainer.monitor._measure = lambda epoch: {"val/loss": float(epoch)}
    assert trainer.fit()
    assert trainer.place.epoch == 3
    path = tmp_path / "ckpt" / "checkpoint_epoch_3.pth"
    again = run(tmp_path, patience=2)
    again.resume(load_checkpoint(path), path)
    assert again.fit() and again.place.epoch == 3


@pytest.mark.parametrize(
    "name, hint", [("acuracy", "Did you mean 'accuracy'"), ("val/lost", "Did you mean 'val/loss'"), ("Car", "Known: ")]
)
def test_a_metric_that_does_not_exist_is_found_before_the_first_step(tmp_path, name, hint):
    trainer = run(tmp_path)
    trainer.monitor.metric = name
    before = weights(trainer.model)
    with pytest.raises(ValueError, match=f"--best_metric: no metric is called {name}. {hint}"):
        trainer.fit()
    assert trainer.place.it == 0
    assert all(torch.equal(before[key], value) for key, value in weights(trainer.model).items())


def test_a_metric_of_a_split_without_labels_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeScenes, "metric_names", lambda self: set())
    trainer = run(tmp_path)
    trainer.monitor.metric = "accuracy"
    with pytest.raises(ValueError, match="There are none: the split has no labels"):
        trainer.fit()


def test_a_metric_that_this_evaluation_lacks_is_no_gain(tmp_path):
    """Such as the precision of detections where there is none yet."""
    watch = monitor(tmp_path, fresh_model(), metric="accuracy")
    watch._measure = lambda epoch: {"accuracy": 0.5} if epoch == 2 else {}
    assert [watch.after_epoch(epoch, False).improved for epoch in (1, 2, 3)] == [False, True, False]
    assert (watch.best.value, watch.best.without_gain) == (0.5, 1)


class Killed(Exception):
    pass


@pytest.mark.parametrize("epoch", [2, 6])
def test_a_run_that_ends_in_an_evaluation_begins_again_with_it(tmp_path, epoch):
    """After the second and after the last epoch: weights, averages and best value of a run that never stopped."""
    whole = run(tmp_path / "whole")
    whole.fit()
    cut = run(tmp_path / "cut")
    measure = cut.monitor._measure

    def measured(number):
        if number == epoch:
            raise Killed
        return measure(number)

    cut.monitor._measure = measured
    with pytest.raises(Killed):
        cut.fit()
    path, checkpoint = find_newest(tmp_path / "cut" / "ckpt")
    assert (path.name, checkpoint["epoch"], checkpoint["step"]) == ("latest_model.pth", epoch - 1, 3)
    again = run(tmp_path / "cut")
    again.resume(checkpoint, path)
    assert again.fit()
    assert again.monitor.best == whole.monitor.best
    for a, b in ((whole.model.state_dict(), again.model.state_dict()), (whole.average.state, again.average.state)):
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert whole.tracker.history.curves["val/loss"] == again.tracker.history.curves["val/loss"]
