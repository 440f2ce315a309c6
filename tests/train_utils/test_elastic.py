"""torchrun --max-restarts: a worker is killed, all begin again from the newest checkpoint, and the result is right."""

from pathlib import Path

import processes
import pytest
import torch

JOB = str(Path(__file__).with_name("elastic_job.py"))


def begin(folder, *arguments, restarts=2):
    folder.mkdir()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--max-restarts", str(restarts)]
    return processes.begin([*torchrun, JOB, folder, *arguments])


def finish(job, folder):
    (status,), (output,) = processes.finish(job)
    assert status == 0, output
    return [torch.load(folder / f"rank{r}.pth", weights_only=True) for r in range(2)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elastic") / "whole"
    return finish(begin(folder), folder)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_begins_again_and_the_weights_are_those_of_an_undisturbed_run(uninterrupted, tmp_path, rank):
    folder = tmp_path / "killed"
    killed = finish(begin(folder, "--kill_rank", str(rank)), folder)
    for whole, again in zip(uninterrupted, killed, strict=True):
        assert not whole["restarted"] and again["restarted"]
        assert again["first"] == 5, "resumed from the last step's checkpoint"
        assert whole["steps"] == again["steps"] == 12
        assert torch.equal(whole["weights"], again["weights"])


def test_without_restarts_the_launcher_reports_failure(tmp_path):
    folder = tmp_path / "killed"
    job = begin(folder, "--kill_rank", "1", restarts=0)
    (status,), (output,) = processes.finish(job)
    assert status != 0 and "SIGKILL" in output
    assert (folder / "ckpt" / "latest_model.pth").is_file()
