"""A run that was killed and started again ends as one that was not, to the bit; signals end it with a checkpoint."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from kill_job import build, result

from pcdet.train_utils import tracking
from pcdet.train_utils.checkpoint import find_newest

JOB = str(Path(__file__).with_name("kill_job.py"))
STEPS_AN_EPOCH = 6  # 24 scenes, 2 in a micro-batch, 2 micro-batches


def run(folder, *options, launcher=(), timeout=120):
    """Exit status and output of one process or launcher."""
    done = subprocess.run(
        [sys.executable, *launcher, JOB, str(folder), *map(str, options)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    return done.returncode, done.stdout


def assert_same_end(folder, whole):
    ended = torch.load(folder / "result.pth", weights_only=True)
    assert (ended["it"], ended["epoch"], ended["over"]) == (whole["it"], whole["epoch"], True)
    assert torch.equal(ended["all"], whole["all"])


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Pictures are tested where they are drawn."""
    monkeypatch.setattr(tracking, "draw_history", lambda history, folder: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of this process that nobody disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "draw_history", lambda history, folder: None)
        trainer = build(tmp_path_factory.mktemp("whole"), 4, 2)
        trainer.fit()
    return result(trainer)


@pytest.mark.parametrize("kill", ["step:random", "save:8", "save:12", "epoch:12", "step:1"])
def test_e8_killed_and_started_again_it_ends_the_same(tmp_path, whole, kill):
    """At a random step, within a save in and at the end of an epoch, between epochs, before the first checkpoint."""
    if kill == "step:random":
        kill = f"step:{np.random.default_rng().integers(2, 4 * STEPS_AN_EPOCH)}"
    status, output = run(tmp_path, "--kill", kill)
    assert status == -signal.SIGKILL, output
    assert not (tmp_path / "result.pth").exists()
    status, output = run(tmp_path, "--kill", kill)
    assert status == 0, output
    assert_same_end(tmp_path, whole)
    assert not list((tmp_path / "ckpt").glob(".*.tmp")), "what a killed writer left over is removed"


def test_e8_a_truncated_newest_file_is_passed_over_and_the_end_is_the_same(tmp_path, whole):
    assert run(tmp_path, "--kill", "step:15")[0] == -signal.SIGKILL
    newest, saved = find_newest(tmp_path / "ckpt")
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size * 6 // 10])
    older, before = find_newest(tmp_path / "ckpt")
    assert older != newest and before["it"] < saved["it"]
    status, output = run(tmp_path)
    assert status == 0 and f"{newest.name} cannot be read" in output
    assert_same_end(tmp_path, whole)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_ends_the_step_saves_and_leaves_the_handlers_as_they_were(tmp_path, whole, monkeypatch, name):
    before = signal.getsignal(getattr(signal, name))
    first = build(tmp_path, 4, 0)
    backward = first._backward

    def with_signal(group):
        if first.place.it == 8:
            os.kill(os.getpid(), getattr(signal, name))
        return backward(group)

    monkeypatch.setattr(first, "_backward", with_signal)
    assert not first.fit()
    assert signal.getsignal(getattr(signal, name)) is before
    path, saved = find_newest(tmp_path / "ckpt")
    assert (path.name, saved["it"]) == ("checkpoint_step_9.pth", 9)
    second = build(tmp_path, 4, 0)
    second.resume(saved, path)
    assert second.fit()
    assert torch.equal(result(second)["all"], whole["all"])


def kills_every_40_to_80(steps, rng):
    """``step:N`` and ``save:N`` places up to ``steps``."""
    at, kills = 0, []
    while (at := at + int(rng.integers(40, 81))) < steps:
        kills.append(f"{'save' if len(kills) % 3 == 2 else 'step'}:{at}")
    return kills


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_soak_300_steps_with_a_kill_every_40_to_80(tmp_path, processes):
    """One process is started anew each time; of two, torchrun restarts both when one is killed."""
    rng = np.random.default_rng(11)
    kills = kills_every_40_to_80(300, rng)
    assert 3 <= len(kills) <= 7
    epochs = 300 // (STEPS_AN_EPOCH // processes)
    common = ["--epochs", epochs, "--save_steps", "7"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    launcher = torchrun if processes > 1 else []
    assert run(tmp_path / "whole", *common, launcher=launcher, timeout=250)[0] == 0
    if processes > 1:
        launcher = [*torchrun, "--max-restarts", str(len(kills))]
    statuses = []
    while not statuses or statuses[-1] == -signal.SIGKILL:
        status, output = run(tmp_path / "killed", *common, "--kill", *kills, launcher=launcher, timeout=250)
        statuses.append(status)
    assert statuses == ([-signal.SIGKILL] * len(kills) + [0] if processes == 1 else [0]), output
    undisturbed = torch.load(tmp_path / "whole" / "result.pth", weights_only=True)
    assert undisturbed["it"] == 300
    assert_same_end(tmp_path / "killed", undisturbed)
