"""Real processes: every way to start them, and what is said when one is lost."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = str(Path(__file__).with_name("launch_job.py"))
LAUNCHED = re.compile("RANK|WORLD_SIZE|MASTER_|SLURM|TORCHELASTIC")
CPU = ["--cfg_file", "none", "--device", "cpu"]


def begin(command, **variables):
    environment = {k: v for k, v in os.environ.items() if not LAUNCHED.search(k)}
    environment |= {"OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(*jobs):
    """Exit statuses and outputs."""
    try:
        outputs = [job.communicate(timeout=60)[0] for job in jobs]
        return [job.returncode for job in jobs], outputs
    finally:
        for job in jobs:
            job.kill()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def by_hand(rank, port, *arguments, world=2):
    """As a cluster's own launcher does: the environment alone."""
    variables = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return begin([JOB, *CPU, "--launcher", "pytorch", *arguments], **variables)


def by_slurm(rank, *arguments):
    variables = {"PROCID": str(rank), "NTASKS": "2", "LOCALID": str(rank), "JOB_ID": str(os.getpid())}
    nodes = {"SLURM_NODELIST": "elsewhere[1-2]", "SLURM_STEP_NODELIST": "localhost"}
    return begin(
        [JOB, *CPU, "--launcher", "slurm", *arguments], **{f"SLURM_{k}": v for k, v in variables.items()}, **nodes
    )


def test_e15_all_launch_styles_at_once():
    """Ports are free ones; torch.distributed.launch's argument is known in both spellings."""
    port = free_port()
    two = ["--standalone", "--nproc_per_node", "2", JOB, *CPU, "--launcher", "pytorch"]
    jobs = [
        begin(["-m", "torch.distributed.run", *two]),
        begin(["-m", "torch.distributed.launch", *two]),
        by_hand(0, port, "--local_rank=0"),
        by_hand(1, port, "--local-rank=1"),
        by_slurm(0),
        by_slurm(1),
    ]
    statuses, outputs = finish(*jobs)
    assert statuses == [0] * 6, outputs
    text = "".join(outputs)
    for rank in (0, 1):
        assert text.count(f"rank {rank} of 2 (gloo): 3") == 4, text


def test_a_missing_rank_is_named_after_the_timeout():
    (status,), (output,) = finish(by_hand(0, free_port(), "--dist_timeout", "1"))
    assert status == 1
    assert "rank 0 of 2 waited 1 s (--dist_timeout)" in output and "Missing: rank 1." in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "failure, said",
    [
        ("killed", "No sign of rank 1"),
        ("stuck", "No sign of rank 1"),
        ("error", "rank 1 ended with: 000123.txt has no labels"),
    ],
)
def test_a_lost_rank_ends_the_others_with_a_message(failure, said):
    port = free_port()
    began = time.monotonic()
    other = by_hand(1, port, "--failure", failure, "--dist_timeout", "4")
    (status,), (output,) = finish(by_hand(0, port, "--dist_timeout", "4"))
    other.kill()
    other.communicate()
    assert status == 1, output
    assert "rank 0 of 2 lost the others" in output and said in output
    assert "Traceback" not in output
    assert time.monotonic() - began < 40


def test_the_rank_that_serves_the_store_is_lost():
    """Here rank 1 outlives rank 0, with whom the store went."""
    port = free_port()
    zero = by_hand(0, port)
    one = by_hand(1, port, "--failure", "stuck", "--dist_timeout", "3")
    while "rank 0 of 2" not in zero.stdout.readline():
        assert zero.poll() is None
    zero.kill()
    zero.communicate()
    one.kill()
    one.communicate()
    (status,), (output,) = finish(by_hand(1, port, "--dist_timeout", "1"))
    assert status == 1 and "Missing: rank 0" in output and "refused" in output
