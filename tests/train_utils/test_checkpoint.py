"""Checkpoint files: whole or not at all, read as data, the newest that can be read."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_fakes import fresh_model
from torch import nn

from pcdet.train_utils.checkpoint import (
    CheckpointKeeper,
    DamagedCheckpoint,
    epoch_files,
    epoch_of,
    find_newest,
    load_checkpoint,
    save_checkpoint,
    set_aside,
)
from pcdet.train_utils.weights import load_pretrained, load_weights
from pcdet.utils.logging import get_logger


def state(epoch, it=None):
    return {"epoch": epoch, "it": 10 * epoch if it is None else it, "model_state": {"w": torch.full((50, 50), epoch)}}


@pytest.fixture
def log(caplog):
    logger = get_logger()
    before = logger.propagate, logger.level
    logger.propagate = True
    caplog.set_level(logging.INFO, logger=logger.name)
    yield caplog
    logger.propagate, logger.level = before


def test_e14_it_is_read_with_weights_only(tmp_path):
    save_checkpoint(tmp_path / "a.pth", state(3))
    loaded = torch.load(tmp_path / "a.pth", weights_only=True)
    assert loaded["epoch"] == 3 and torch.equal(loaded["model_state"]["w"], state(3)["model_state"]["w"])


def test_a_checkpoint_of_openpcdet_loads(tmp_path):
    """Old file format, an OrderedDict, and NumPy scalars for the learning rate."""
    group = {"lr": np.float64(0.003), "betas": (np.float64(0.95), 0.99), "params": [0]}
    theirs = {**state(80), "optimizer_state": {"state": {}, "param_groups": [group]}, "version": "pcdet+0.6.0+8cacccec"}
    torch.save(theirs, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    loaded = load_checkpoint(tmp_path / "a.pth")
    assert loaded["optimizer_state"]["param_groups"][0]["lr"] == 0.003


class Trap:
    def __reduce__(self):
        return os.system, ("true",)


def test_other_objects_are_refused(tmp_path):
    torch.save({"epoch": 1, "trap": Trap()}, tmp_path / "a.pth")
    with pytest.raises(DamagedCheckpoint, match=r"a\.pth cannot be read as a checkpoint"):
        load_checkpoint(tmp_path / "a.pth")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_checkpoint(tmp_path / "b.pth")


def damage(path, kind):
    data = path.read_bytes()
    path.write_bytes({"cut": data[: int(0.6 * len(data))], "empty": b"", "noise": b"\x00\x01no"}[kind])


@pytest.mark.parametrize("kind", ["cut", "empty", "noise"])
def test_e8_a_damaged_newest_file_is_passed_over(tmp_path, kind, log):
    for epoch in (1, 2, 10):
        save_checkpoint(tmp_path / f"checkpoint_epoch_{epoch}.pth", state(epoch))
    damage(tmp_path / "checkpoint_epoch_10.pth", kind)
    path, checkpoint = find_newest(tmp_path)
    assert (path.name, checkpoint["epoch"]) == ("checkpoint_epoch_2.pth", 2)
    assert "checkpoint_epoch_10.pth cannot be read" in log.text
    assert (tmp_path / "checkpoint_epoch_10.pth").exists()


def test_e8_only_damaged_files_are_an_error_and_not_a_fresh_start(tmp_path):
    save_checkpoint(tmp_path / "checkpoint_epoch_1.pth", state(1))
    damage(tmp_path / "checkpoint_epoch_1.pth", "cut")
    with pytest.raises(DamagedCheckpoint, match="--no_resume"):
        find_newest(tmp_path)
    assert find_newest(tmp_path / "nothing") is None


def test_e8_a_kill_while_saving_leaves_the_old_file(tmp_path):
    """The writer is killed in the middle of a large save."""
    path = tmp_path / "latest_model.pth"
    save_checkpoint(path, state(1))
    code = (
        "import sys, torch; from pcdet.train_utils.checkpoint import save_checkpoint\n"
        "big = {'epoch': 2, 'it': 20, 'model_state': {'w': torch.zeros(30_000_000)}}\n"
        "print('saving', flush=True)\n"
        "while True: save_checkpoint(sys.argv[1], big)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    child.stdout.readline()
    time.sleep(0.05)
    child.kill()
    child.wait()
    child.stdout.close()
    assert load_checkpoint(path)["epoch"] in (1, 2)


def test_the_newest_is_the_one_that_has_seen_most(tmp_path):
    save_checkpoint(tmp_path / "checkpoint_epoch_2.pth", state(2))
    save_checkpoint(tmp_path / "latest_model.pth", state(2, it=25))
    assert find_newest(tmp_path)[0].name == "latest_model.pth"
    save_checkpoint(tmp_path / "checkpoint_epoch_3.pth", state(3))
    assert find_newest(tmp_path)[0].name == "checkpoint_epoch_3.pth"


def test_the_oldest_go_when_there_are_too_many(tmp_path):
    keeper = CheckpointKeeper(tmp_path, max_kept=3)
    for epoch in (1, 2, 9, 10, 11):
        keeper.save_epoch(state(epoch))
    assert [f.name for f in epoch_files(tmp_path)] == [f"checkpoint_epoch_{n}.pth" for n in (9, 10, 11)]
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointKeeper(tmp_path, max_kept=0)


def test_step_files_are_kept_apart_from_epochs_and_the_best_stays(tmp_path):
    """At every 5th step a file, the newest two of them; neither counts among the epochs', nor does the best."""
    keeper = CheckpointKeeper(tmp_path, max_kept=1, steps_between=5, seconds_between=1000)
    keeper.save_best(state(0, it=1))
    for step in range(1, 18):
        if keeper.is_due(step):
            keeper.save_due(state(0, it=step), step)
    for epoch in (1, 2):
        keeper.save_epoch(state(epoch, it=20 * epoch))
    names = sorted(f.name for f in tmp_path.iterdir())
    assert names == ["best_model.pth", "checkpoint_epoch_2.pth", "checkpoint_step_10.pth", "checkpoint_step_15.pth"]
    with pytest.raises(ValueError, match="--ckpt_save_steps is -1"):
        CheckpointKeeper(tmp_path, steps_between=-1)


def test_the_time_between_files_counts_from_the_last_of_any_kind(tmp_path):
    keeper = CheckpointKeeper(tmp_path, steps_between=2, seconds_between=0.0)
    assert keeper.is_due(1)
    keeper.save_due(state(0, it=1), 1)
    assert [f.name for f in tmp_path.iterdir()] == ["latest_model.pth"]
    keeper.seconds_between = 1000
    assert not keeper.is_due(3)
    assert load_checkpoint(tmp_path / "latest_model.pth")["it"] == 1


def test_latest_is_due_by_time(tmp_path):
    assert not CheckpointKeeper(tmp_path, seconds_between=1000).is_due(1)
    assert CheckpointKeeper(tmp_path, seconds_between=0).is_due(1)


def test_epochs_are_read_from_names():
    assert [epoch_of(n) for n in ("ckpt/checkpoint_epoch_80.pth", "pv_rcnn_8369.pth", "a/7/latest_model.pth")] == [
        "80",
        "8369",
        "no_number",
    ]


def test_set_aside_deletes_nothing(tmp_path):
    folder = tmp_path / "ckpt"
    for _ in range(2):
        save_checkpoint(folder / "checkpoint_epoch_1.pth", state(1))
        set_aside(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt_before_1", "ckpt_before_2"]
    assert set_aside(folder) is None


def test_e13_a_partial_fit_is_an_error_with_a_table():
    saved = {k: v for k, v in fresh_model().state_dict().items() if k != "first.bias"}
    saved["last.weight"] = torch.zeros(3, 8)  # three classes instead of two
    saved["extra.weight"] = torch.zeros(1)
    with pytest.raises(ValueError) as error:
        load_weights(fresh_model(), {"model_state": saved}, "a.pth")
    text = str(error.value)
    assert "missing in the file     first.bias" in text
    assert "unknown to the model    extra.weight" in text
    assert "other shape             last.weight: (3, 8) in the file, (2, 8) in the model" in text
    assert "--pretrained_model" in text


def test_e13_pretrained_takes_what_fits_and_lists_the_rest(log):
    model, saved = fresh_model(), fresh_model().state_dict()
    saved = {k: torch.full_like(v, 7) for k, v in saved.items() if k != "first.bias"}
    saved["last.weight"] = torch.zeros(3, 8)
    kept = model.first.bias.detach().clone()
    with pytest.raises(ValueError, match=r"other shape +last.weight(.|\n)*add --partial"):
        load_pretrained(model, {"model_state": saved}, "a.pth")
    assert not (model.first.weight == 7).any()
    report = load_pretrained(model, {"model_state": saved}, "a.pth", partial=True)
    assert report.missing == ["first.bias"] and list(report.mismatched) == ["last.weight"]
    assert (model.first.weight == 7).all() and torch.equal(model.first.bias, kept)
    assert "Not updated weight last.weight: (2, 8)" in log.text
    assert f"==> Done (loaded {len(saved) - 1}/{len(saved) + 1})" in log.text


def test_weights_that_fit_nowhere_are_an_error():
    with pytest.raises(ValueError, match="holds no weight of this model"):
        load_pretrained(fresh_model(), {"model_state": {"other": torch.zeros(1)}}, "a.pth")


def test_weights_of_a_distributed_wrapper_and_bare_weights_load():
    model = nn.Linear(2, 2)
    load_weights(model, {f"module.{k}": torch.ones_like(v) for k, v in model.state_dict().items()}, "a.pth")
    assert (model.weight == 1).all()


def test_e8_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "checkpoint_epoch_1.pth", state(1))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    keeper = CheckpointKeeper(tmp_path, max_kept=1)
    with pytest.raises(OSError, match="No space left"):
        keeper.save_epoch(state(2))
    assert [f.name for f in tmp_path.iterdir()] == ["checkpoint_epoch_1.pth"]
    assert load_checkpoint(tmp_path / "checkpoint_epoch_1.pth")["epoch"] == 1


def test_files_from_before_a_run_do_not_count(tmp_path):
    save_checkpoint(tmp_path / "checkpoint_epoch_7.pth", {"epoch": 7})
    os.utime(tmp_path / "checkpoint_epoch_7.pth", (1000, 1000))
    assert find_newest(tmp_path, since=2000) is None
    save_checkpoint(tmp_path / "checkpoint_epoch_2.pth", {"epoch": 2})
    assert find_newest(tmp_path, since=2000)[1]["epoch"] == 2
    assert find_newest(tmp_path)[1]["epoch"] == 7


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which has no room for anything")
def test_e8_a_full_disk_is_named_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "latest_model.pth"
    save_checkpoint(path, {"epoch": 1})
    opened = os.fdopen

    def on_a_full_disk(descriptor, mode, **options):
        os.close(descriptor)
        return open("/dev/full", mode, **options)

    monkeypatch.setattr(os, "fdopen", on_a_full_disk)
    with pytest.raises(OSError, match="No space left on device.*latest_model.pth"):
        save_checkpoint(path, {"epoch": 2, "weights": torch.zeros(100_000)})
    monkeypatch.setattr(os, "fdopen", opened)
    assert load_checkpoint(path) == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["latest_model.pth"]
