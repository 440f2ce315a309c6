"""Which checkpoint a training goes on from, in its first attempt and after torchrun has restarted it."""

import os
from argparse import Namespace

import pytest

from pcdet.train_utils import launch
from pcdet.train_utils.checkpoint import save_checkpoint


@pytest.fixture
def find(tools, tmp_path):
    def call(**given):
        options = Namespace(**{"ckpt": None, "no_resume": False, **given})
        found = tools("train").__globals__["find_checkpoint"](options, tmp_path)
        return found and found[0]

    return call


@pytest.fixture
def files(tmp_path):
    """An old run of 9 epochs, one file to begin from, and a new run of 3 epochs that began at the time 2000."""
    old, new = tmp_path / "ckpt" / "checkpoint_epoch_9.pth", tmp_path / "ckpt" / "checkpoint_epoch_3.pth"
    given = tmp_path / "given.pth"
    for file, epoch, seconds in ((old, 9, 1000), (given, 2, 1000), (new, 3, 3000)):
        file.parent.mkdir(exist_ok=True)
        save_checkpoint(file, {"epoch": epoch})
        os.utime(file, (seconds, seconds))
    return old, given, new


def restart(monkeypatch, began):
    monkeypatch.setattr(launch, "is_restart", lambda: True)
    monkeypatch.setattr(launch, "restarted_since", lambda: began)


def test_the_first_attempt_takes_what_is_named(find, files):
    old, given, _ = files
    assert find() == old
    assert find(ckpt=given) == given


def test_a_restart_goes_on_from_what_its_run_has_written(find, files, monkeypatch):
    old, given, new = files
    restart(monkeypatch, began=2000)
    assert find(ckpt=given) == new
    assert find() == old
    new.unlink()
    assert find(ckpt=given) == given


def test_a_restart_does_not_begin_anew(find, files, monkeypatch):
    restart(monkeypatch, began=2000)
    assert find(no_resume=True) == files[0]
    assert all(file.exists() for file in files)
