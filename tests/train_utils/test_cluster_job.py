"""tools/scripts/cluster_train.sh, the command of every cluster job, and the Slurm array around it."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from processes import begin, clean_environment, finish, free_port, kill_tree, wait_for

from pcdet.datasets.synthetic import simulate_modelnet

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers through /proc")
SCRIPTS = Path(__file__).resolve().parents[2] / "tools" / "scripts"
JOB = SCRIPTS / "cluster_train.sh"
PATIENCE = 240  # seconds, for trainings on a busy machine


@pytest.fixture
def launched(tmp_path):
    """``launched(variables, *options)``: exit status, and the words given to a stand-in for Python and torchrun.

    The stand-in writes $NOTE to the --status_file, as the training does, and ends with $CODE.
    """
    record = tmp_path / "words"
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" >{record}
while [ "$1" != --status_file ]; do shift; done
[ -z "$NOTE" ] || echo "$NOTE" >"$2"
exit "$CODE"
""")
    python.chmod(0o755)

    def launch(variables, *options, script=JOB):
        given = {"PYTHON": python, "NOTE": "finished", "CODE": 0, **variables}
        (status,), (output,) = finish(begin(["sh", script, *options], clean_environment(**given)))
        return status, record.read_text().splitlines() if record.exists() else [], output

    return launch


def test_one_machine(launched):
    status, words, _ = launched({"NPROC_PER_NODE": 4}, "--cfg_file", "a b.yaml")
    assert status == 0
    assert words[:5] == ["-m", "torch.distributed.run", "--standalone", "--local_addr", "localhost"]
    assert words[5:9] == ["--nproc_per_node", "4", "--max-restarts", "3"]
    assert Path(words[9]).resolve() == SCRIPTS.parent / "train.py"
    assert words[10:12] == ["--launcher", "pytorch"] and words[14:] == ["--cfg_file", "a b.yaml"]
    assert words[12] == "--status_file" and not Path(words[13]).parent.exists(), "nothing stays behind"


@pytest.mark.parametrize(
    "number, serves",
    [
        ({"SLURM_NODEID": 0}, True),
        ({"SLURM_NODEID": 1}, False),
        ({"JOB_COMPLETION_INDEX": 1}, False),
        ({"RANK": 0}, True),
        ({"RANK": 1, "WORLD_SIZE": 2}, False),
        ({"NODE_RANK": 0, "RANK": 1}, True),
    ],
)
def test_a_machines_number_from_every_scheduler(launched, number, serves):
    """Slurm's, an indexed Job's, a PyTorchJob's; node 0 serves the store at which all meet."""
    variables = {"NNODES": 2, "MASTER_ADDR": "pcdet-0.pcdet", "RUN_ID": "77", "LOCAL_ADDR": "10.1.2.3"}
    _, words, _ = launched({**variables, **number})
    options = dict(zip(words[2:-5:2], words[3:-5:2], strict=True))
    conf = dict(pair.split("=") for pair in options["--rdzv_conf"].split(","))
    assert conf == {"is_host": str(serves).lower(), "join_timeout": "3600"}
    assert options["--rdzv_endpoint"] == "pcdet-0.pcdet:29400" and options["--rdzv_id"] == "77"
    assert options["--nnodes"] == "2" and options["--local_addr"] == "10.1.2.3"


def test_several_machines_need_an_address(launched):
    status, words, output = launched({"NNODES": 2})
    assert status != 0 and not words and "MASTER_ADDR" in output


@pytest.mark.parametrize(
    "note, code, status",
    [("finished", 0, 0), ("stopped", 0, 138), ("stopped", 1, 138), ("lost", 1, 142), ("failed", 1, 1), ("", 2, 2),
     ("", 0, 1)],
)  # fmt: skip
def test_the_exit_status_tells_whether_to_start_again(launched, note, code, status):
    assert launched({"NOTE": note, "CODE": code})[0] == status


@pytest.fixture
def array(tmp_path, launched):
    """``array(entry, note)``: an entry of a Slurm array whose training ends with this note."""
    folder = tmp_path / "bin"
    folder.mkdir()
    runs = tmp_path / "runs.txt"
    runs.write_text("--cfg_file first.yaml\n--cfg_file second.yaml --extra_tag b\n")
    scontrol = '[ "$1" = requeue ] && echo "requeued $2" || printf "gpu3\\ngpu4\\n"'
    fake = Path(__file__).with_name("fake_srun.py")
    for name, text in {"srun": f'exec {sys.executable} {fake} "$@"', "scontrol": scontrol}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    variables = {"PATH": f"{folder}:/usr/bin:/bin", "SRUN_RECORD": tmp_path / "srun_options"}
    variables |= {"SLURM_JOB_ID": 4012345, "SLURM_SUBMIT_DIR": SCRIPTS.parents[1], "SLURM_GPUS_ON_NODE": 2}

    def run(entry, note="finished", **more):
        given = {**variables, "SLURM_ARRAY_TASK_ID": entry, "NOTE": note, **more}
        return launched(given, runs, script=SCRIPTS / "slurm_array.sh")

    return run


def test_an_entry_of_the_array_runs_its_line(array):
    status, words, _ = array(1)
    assert status == 0
    assert words[2:7] == ["--standalone", "--local_addr", "localhost", "--nproc_per_node", "2"]
    assert words[-4:] == ["--cfg_file", "second.yaml", "--extra_tag", "b"]


def test_an_entry_on_several_machines(array):
    _, words, _ = array(0, SLURM_JOB_NUM_NODES=2, SLURM_JOB_NODELIST="gpu[3-4]")
    assert "gpu3:22345" in words and "4012345" in words, "the job's first machine, a port and a name of the job's own"


def test_a_preempted_entry_is_queued_again(array):
    status, _, output = array(0, "stopped")
    assert status == 0 and "requeued 4012345" in output


@pytest.mark.parametrize("entry, note, said", [(0, "failed", ""), (2, "finished", "has no line 3")])
def test_an_entry_that_fails_is_not_queued_again(array, entry, note, said):
    status, _, output = array(entry, note, CODE=1)
    assert status != 0 and "requeued" not in output and said in output


@pytest.fixture
def training(root, tmp_path):
    """Starts a real training of two processes by the script."""
    simulate_modelnet(tmp_path / "shapes", per_class=3, seed=0)

    def start(output, *options, **variables):
        given = {"PYTHON": sys.executable, "NPROC_PER_NODE": 2, "MAX_RESTARTS": 0, **variables}
        environment = clean_environment(**given)
        words = ["--cfg_file", "cfgs/synthetic_models/pointnet_shapes.yaml", "--device", "cpu", "--workers", "0"]
        words += ["--output_dir", tmp_path / output, *options, "--set", "DATA_CONFIG.DATA_PATH", tmp_path / "shapes"]
        words += ["DATA_CONFIG.NUM_POINTS", "64", "OPTIMIZATION.BATCH_SIZE_PER_GPU", "4"]
        return begin(["sh", JOB, *words], environment, cwd=root)

    return start


@pytest.mark.timeout(900)
def test_preempted_and_started_again(training, tmp_path):
    """The signal reaches the script alone, as a pod's first process; it comes while the first epochs are trained."""
    weights = []
    for output in ("whole", "preempted"):
        job = training(output, "--epochs", "6", "--ckpt_save_time_interval", "0")
        folder = tmp_path / output / "synthetic_models/pointnet_shapes/default/ckpt"
        if output == "preempted":
            wait_for((folder / "checkpoint_epoch_1.pth").is_file, job, PATIENCE)
            os.kill(job.pid, signal.SIGTERM)
            (status,), (text,) = finish(job, timeout=PATIENCE)
            assert status == 138 and "Stopped by SIGUSR1 after step" in text, text
            assert not (folder / "checkpoint_epoch_6.pth").exists()
            job = training(output, "--epochs", "6")
        (status,), (text,) = finish(job, timeout=PATIENCE)
        assert status == 0, text
        weights.append(torch.load(folder / "checkpoint_epoch_6.pth", weights_only=True)["model_state"])
    assert "Resuming after" in text
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.timeout(900)
def test_an_error_of_the_users_is_final(training):
    (status,), (text,) = finish(training("wrong", "--epochs", "1", "--ckpt", "nowhere.pth"), timeout=PATIENCE)
    assert status == 1 and "nowhere.pth" in text


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_machine_that_loses_the_other_is_to_be_started_again(training, tmp_path, lost):
    """Two machines are two launchers here. One is killed with its worker; the other has no restart left."""
    node = {"NNODES": 2, "NPROC_PER_NODE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    node |= {"LOCAL_ADDR": "127.0.0.1"}
    options = ["--epochs", "500", "--dist_timeout", "30"]
    machines = [training("both", *options, **{**node, "NODE_RANK": n}) for n in (0, 1)]
    folder = tmp_path / "both/synthetic_models/pointnet_shapes/default/ckpt"
    wait_for((folder / "checkpoint_epoch_1.pth").is_file, machines[0], PATIENCE)
    kill_tree(machines[lost])
    (status,), (text,) = finish(machines[1 - lost], timeout=PATIENCE)
    assert status == 142 and "of 2 lost the others" in text, text
