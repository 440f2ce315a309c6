"""tools/train.py under torchrun --max-restarts: killed in the middle, it ends as if it had never been."""

import os
import signal
import sys

import pytest
import torch
from processes import begin, clean_environment, finish, wait_for, workers

from pcdet.datasets.synthetic import simulate_modelnet

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers through /proc")
CONFIG = "cfgs/synthetic_models/pointnet_shapes.yaml"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    simulate_modelnet(folder, per_class=5, seed=0)
    return folder


@pytest.fixture
def train(root, shapes):
    """Starts two processes of a training; every step has its checkpoint. Returns the job and its environment."""

    def start(output, *options):
        environment = clean_environment(PYTHONPATH=root)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--max-restarts", "2"]
        run = ["--cfg_file", CONFIG, "--launcher", "pytorch", "--device", "cpu", "--workers", "0", "--epochs", "4"]
        run += ["--output_dir", output, "--ckpt_save_time_interval", "0", *options]
        values = ["DATA_CONFIG.DATA_PATH", shapes, "DATA_CONFIG.NUM_POINTS", "64", "OPTIMIZATION.BATCH_SIZE_PER_GPU", 4]
        return begin([*launcher, "tools/train.py", *run, "--set", *values], environment, cwd=root), environment

    return start


def folder_of(output):
    return output / "synthetic_models" / "pointnet_shapes" / "default" / "ckpt"


def last(output):
    return torch.load(folder_of(output) / "checkpoint_epoch_4.pth", weights_only=True)


def kill(rank, job, environment, output):
    """End a worker while the second epoch is on; returns the job's output."""
    latest = folder_of(output) / "latest_model.pth"
    first = folder_of(output) / "checkpoint_epoch_1.pth"
    wait_for(lambda: first.is_file() and latest.is_file(), job)
    os.kill(workers(environment)[rank], signal.SIGKILL)
    assert not (folder_of(output) / "checkpoint_epoch_4.pth").exists(), "killed too late to prove anything"
    (status,), (text,) = finish(job)
    assert status == 0, text
    return text


@pytest.fixture(scope="module")
def whole():
    """The weights of a run that nothing disturbed, once it has been made."""
    return {}


@pytest.mark.parametrize("options", [(), ("--no_resume",)])
def test_a_killed_worker_begins_again_and_the_weights_are_right(train, whole, tmp_path, options):
    """--no_resume begins anew once, not again with every restart."""
    if not whole:
        (status,), (text,) = finish(train(tmp_path / "whole")[0])
        assert status == 0, text
        whole.update(last(tmp_path / "whole"))
    output = tmp_path / "killed"
    text = kill(len(options), *train(output, *options), output)
    assert text.count("Start logging") == 2 and "Resuming after" in text, text
    again = last(output)
    assert again["it"] == whole["it"] > 0
    for name, value in whole["model_state"].items():
        assert torch.equal(again["model_state"][name], value), name
    assert not list(folder_of(output).parent.glob("*_before_*"))
