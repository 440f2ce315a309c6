"""Several processes on one machine (Gloo): the same steps as one process takes, and every frame evaluated once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

JOB = Path(__file__).with_name("distributed_job.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
LAUNCH = ["-m", "torch.distributed.launch", "--standalone", "--nproc_per_node", "2"]


def begin(folder, launcher, *arguments):
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(JOB), str(folder), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(job, folder):
    output = job.communicate(timeout=90)[0]
    assert job.returncode == 0, output
    return [json.loads(f.read_text()) for f in sorted(folder.glob("rank*.json"))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two jobs at once (E15), and the single process that they are compared with."""
    folder = tmp_path_factory.mktemp("jobs")
    started = {
        "torchrun": begin(folder / "torchrun", TORCHRUN, "--scenes", "8"),
        "launch": begin(folder / "launch", LAUNCH, "--scenes", "7"),
        "single": begin(folder / "single", [], "--launcher", "none", "--batch_size", "4", "--scenes", "8"),
    }
    try:
        return {name: finish(job, folder / name) for name, job in started.items()}
    finally:
        for job in started.values():
            job.terminate()


def test_two_ranks_equal_one(runs):
    """2 ranks of batch 2 and one process of batch 4 take the same steps."""
    (single,), pair = runs["single"], runs["torchrun"]
    assert len(pair) == 2
    for rank in pair:
        assert rank["steps"] == single["steps"] == 2
        np.testing.assert_allclose(rank["norms"], single["norms"], rtol=1e-5)
        np.testing.assert_allclose(rank["weights"], single["weights"], rtol=1e-4, atol=1e-6)
    assert pair[0]["weights"] == pair[1]["weights"]


def test_e3_uneven_scenes_end_in_step(runs):
    """7 scenes on 2 ranks with batch 2."""
    a, b = runs["launch"]
    assert a["steps"] == b["steps"] == 2
    assert a["weights"] == b["weights"]


def test_d13_every_frame_is_evaluated_once_and_in_order(runs):
    """5 frames on 2 ranks: the frames and the metrics of a single process."""
    for rank in runs["torchrun"]:
        assert rank["evaluated"] == [f"{i:06d}" for i in range(5)]
    assert runs["torchrun"][0]["metrics"] == pytest.approx(runs["single"][0]["metrics"])
