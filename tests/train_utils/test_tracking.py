"""TensorBoard files, history and log lines."""

import pytest

from pcdet.train_utils.progress import Meter, Progress
from pcdet.train_utils.tracking import History, Tracker


def test_the_history_of_a_resumed_run_is_cut_where_it_continues(tmp_path):
    history = History()
    for step in (10, 20, 30):
        history.add({"train/loss": 1 / step}, step)
    history.add({"late": 1.0}, 30)
    history.save(tmp_path / "history.json")
    assert History.load(tmp_path / "history.json").until(20).curves == {"train/loss": ([10, 20], [1 / 10, 1 / 20])}
    assert History.load(tmp_path / "nothing.json").curves == {}


def test_intervals_hold_means_and_tensorboard_gets_every_step(tmp_path):
    tracker = Tracker(tmp_path)
    for step, loss in enumerate([4.0, 2.0, 9.0], start=1):
        tracker.scalars({"train/loss": loss}, step)
        if step == 2:
            tracker.close_interval(step)
    tracker.close_interval(3)
    assert tracker.history.curves == {"train/loss": ([2, 3], [3.0, 9.0])}
    tracker.writer.close()
    events = list((tmp_path / "tensorboard").glob("events*"))
    assert len(events) == 1 and events[0].read_bytes().count(b"train/loss") == 3


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = Tracker(None)
    tracker.scalars({"train/loss": 1.0}, 1)
    tracker.close_interval(1)
    tracker.close()
    assert not list(tmp_path.iterdir())


def test_meters():
    meter = Meter()
    assert meter.mean == 0
    meter.add(1.0)
    meter.add(4.0)
    assert (meter.last, meter.mean) == (4.0, 2.5)


def progress(**options):
    given = {"epochs": 2, "steps_per_epoch": 4, "samples_per_step": 6, "first_step": 0, "bar": False, "interval": 2}
    return Progress(**{**given, **options})


def test_remaining_time_follows_the_pace_of_this_process(monkeypatch):
    """Resumed at step 4 of 8; two steps took 10 s each: 20 s are left."""
    now = [100.0]
    monkeypatch.setattr("pcdet.train_utils.progress.time.monotonic", lambda: now[0])
    shown = progress(first_step=4)
    shown.start_epoch(1, 0)
    for number in range(2):
        now[0] += 10
        shown.step(1, number, 5 + number, loss=0.5, lr=0.1, data=4.0, forward=6.0)
    line = shown.line(1, 1, 6, 0.1)
    assert "Train:    2/2 (100%) [   2/4 ( 50%)]  Loss: 0.5000 (0.500)  LR: 1.000e-01" in line
    assert "Time cost: 00:20/00:20 [00:20/00:20]  Acc_iter 6 " in line
    assert "Data time: 4.00(4.00)  Forward time: 6.00(6.00)  Batch time: 10.00(10.00)" in line
    assert shown.samples_per_second() == pytest.approx(0.6)


def test_a_models_accuracy_stands_in_the_line(capsys):
    shown = progress()
    shown.start_epoch(0, 0)
    for number, right in enumerate((0.5, 0.75)):
        shown.step(0, number, number + 1, loss=0.5, lr=0.1, data=0.0, forward=1.0, accuracy=right)
    assert "Loss: 0.5000 (0.500)  Accuracy: 0.750 (0.625)  LR:" in shown.line(0, 1, 2, 0.1)
    shown.start_epoch(1, 0)
    assert "Accuracy" not in shown.line(1, 0, 2, 0.1)  # an epoch begins its own mean


def test_the_bar_shows_loss_rate_times_and_what_remains(capsys):
    shown = progress(bar=True)
    shown.start_epoch(0, 0)
    for number in range(4):
        shown.step(0, number, number + 1, loss=0.25, lr=0.1, data=0.5, forward=1.0)
    shown.end_epoch(1, 4)
    text = capsys.readouterr().err
    assert "epoch 1/2" in text and "4/4" in text
    for word in ("loss 0.25 (0.25)", "lr 1.00e-01", "data 0.50 s", "step 1.50 s", "4.0 samples/s", "all done in"):
        assert word in text
