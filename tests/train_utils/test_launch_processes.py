"""Real processes: every way to start them, and what is said when one is lost."""

import os
import time
from pathlib import Path

import pytest
from processes import begin, clean_environment, finish, free_port

JOB = str(Path(__file__).with_name("launch_job.py"))
CPU = ["--cfg_file", "none", "--device", "cpu"]


def by_hand(rank, port, *arguments, world=2):
    """As a cluster's own launcher does: the environment alone."""
    variables = clean_environment(RANK=rank, WORLD_SIZE=world, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    return begin([JOB, *CPU, "--launcher", "pytorch", *arguments], variables)


def by_slurm(rank, *arguments):
    variables = {"PROCID": rank, "NTASKS": 2, "LOCALID": rank, "JOB_ID": os.getpid()}
    variables |= {"NODELIST": "elsewhere[1-2]", "STEP_NODELIST": "localhost"}
    environment = clean_environment(**{f"SLURM_{k}": v for k, v in variables.items()})
    return begin([JOB, *CPU, "--launcher", "slurm", *arguments], environment)


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


def test_torchrun_without_launcher_pytorch_is_refused():
    job = begin(["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", JOB, *CPU])
    (status,), (output,) = finish(job)
    assert status == 1 and "torchrun has started 2 processes: add --launcher pytorch" in output
