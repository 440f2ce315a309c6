"""Two machines, as two network namespaces with a cable between them: one fails, and the training recovers.

Each runs the entry command of the cluster jobs, which is torchrun with --nnodes 2. Needs root.
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from processes import begin, clean_environment, finish, kill_tree, wait_for, workers

from pcdet.datasets.synthetic import simulate_modelnet

PATIENCE = 240  # seconds, on a busy machine
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # reserved for documentation: no real network has them


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces():
    """The names of two network namespaces that reach each other, and nothing else."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making network namespaces needs Linux, root and iproute2")
    names = [f"pcdet{os.getpid()}{letter}" for letter in "ab"]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "name", "cable0", "netns", names[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable0")
            for device in ("lo", "cable0"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def train(root, tmp_path):
    """``train(output, prefix, **variables)`` starts one machine; returns its job and its environment."""
    simulate_modelnet(tmp_path / "shapes", per_class=3, seed=0)

    def start(output, prefix=(), **variables):
        environment = clean_environment(PYTHON=sys.executable, **variables)
        words = ["--cfg_file", "cfgs/synthetic_models/pointnet_shapes.yaml", "--device", "cpu", "--workers", "0"]
        words += ["--output_dir", tmp_path / output, "--epochs", "6", "--ckpt_save_time_interval", "0"]
        words += ["--dist_timeout", "60", "--set", "DATA_CONFIG.DATA_PATH", tmp_path / "shapes"]
        words += ["DATA_CONFIG.NUM_POINTS", "64", "OPTIMIZATION.BATCH_SIZE_PER_GPU", "4"]
        command = [*prefix, "sh", root / "tools/scripts/cluster_train.sh", *words]
        return begin(command, environment, cwd=root), environment

    return start


def checkpoints(tmp_path, output):
    return tmp_path / output / "synthetic_models" / "pointnet_shapes" / "default" / "ckpt"


def last(tmp_path, output):
    return torch.load(checkpoints(tmp_path, output) / "checkpoint_epoch_6.pth", weights_only=True)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_machines_recover_from_a_killed_worker_and_from_a_lost_machine(namespaces, train, tmp_path):
    """First a worker of the second machine is killed, later all of that machine's processes, and it comes back."""
    (status,), (text,) = finish(train("whole", NPROC_PER_NODE=2)[0], timeout=PATIENCE)
    assert status == 0, text

    def node(number):
        variables = {"NNODES": 2, "NODE_RANK": number, "MASTER_ADDR": ADDRESSES[0], "LOCAL_ADDR": ADDRESSES[number]}
        prefix = ("ip", "netns", "exec", namespaces[number])
        return train("killed", prefix, GLOO_SOCKET_IFNAME="cable0", **variables)

    folder = checkpoints(tmp_path, "killed")
    (first, _), (second, environment) = node(0), node(1)
    wait_for((folder / "checkpoint_epoch_1.pth").is_file, second, PATIENCE)
    os.kill(next(iter(workers(environment).values())), signal.SIGKILL)
    wait_for((folder / "checkpoint_epoch_3.pth").is_file, second, PATIENCE)
    kill_tree(second)
    assert not (folder / "checkpoint_epoch_6.pth").exists(), "killed too late to prove anything"
    second, _ = node(1)
    statuses, outputs = finish(first, second, timeout=PATIENCE)
    assert statuses == [0, 0], outputs

    assert outputs[0].count("Start logging") + outputs[1].count("Start logging") == 3, outputs
    whole, killed = last(tmp_path, "whole"), last(tmp_path, "killed")
    assert killed["it"] == whole["it"] > 0
    for name, value in whole["model_state"].items():
        assert torch.equal(killed["model_state"][name], value), name
