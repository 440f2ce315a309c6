"""tools/scripts: OpenPCDet's arguments, what becomes of them, and a training and its evaluations through them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import begin, clean_environment, finish

from pcdet.datasets.synthetic import simulate_modelnet

SCRIPTS = Path(__file__).resolve().parents[2] / "tools" / "scripts"
OPTIONS = ["--cfg_file", "a b.yaml", "--set", "OPTIMIZATION.LR", "0.1"]  # a name with a space stays one argument


def program(folder, name, text):
    """An executable shell script; returns its path."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def slurm(tmp_path):
    """Environment in which ``srun`` is the one of fake_srun.py."""
    program(tmp_path / "bin", "srun", f'exec {sys.executable} {Path(__file__).with_name("fake_srun.py")} "$@"')
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    return {"PATH": path, "PYTHON": sys.executable, "SRUN_RECORD": tmp_path / "srun_options"}


def words_of(script, tmp_path, environment, *arguments):
    """What the script would run in the place of Python, one word a line, for one task or launcher."""
    record = tmp_path / "words"
    python = program(tmp_path / "bin", "python", f"printf '%s\\n' \"$@\" >{record}")
    job = begin([SCRIPTS / script, *arguments], clean_environment(**{**environment, "PYTHON": python}))
    (status,), (output,) = finish(job)
    assert status == 0, output
    return record.read_text().splitlines()


@pytest.mark.parametrize("name", ["dist_train.sh", "torch_train.sh", "dist_test.sh", "torch_test.sh"])
def test_scripts_for_one_machine(tmp_path, name):
    words = words_of(name, tmp_path, {}, "3", *OPTIONS)
    alone = ["-m", "torch.distributed.run", "--standalone", "--local_addr", "localhost", "--nproc_per_node", "3"]
    assert words[:7] == alone
    tool = words[7]
    assert Path(tool).resolve() == SCRIPTS.parent / ("train.py" if "train" in name else "test.py")
    assert words[8:] == ["--launcher", "pytorch", *OPTIONS]


GPUS_16 = "--gres=gpu:8 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=5 --kill-on-bad-exit=1"
GPUS_2 = "--gres=gpu:2 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=5 --kill-on-bad-exit=1"


@pytest.mark.parametrize(
    "name, first, asked, launched",
    [
        ("slurm_train.sh", ["gpu", "name", "16"], f"-p gpu --job-name=name {GPUS_16}", ["--launcher", "slurm"]),
        ("slurm_train.sh", ["gpu", "name", "2"], f"-p gpu --job-name=name {GPUS_2}", ["--launcher", "slurm"]),
        ("slurm_train_v2.sh", ["gpu", "name", "2"],
         "-p gpu --job-name=name --gpus-per-task=1 --ntasks=2 --cpus-per-task=5 --kill-on-bad-exit=1",
         ["--launcher", "slurm"]),
        ("slurm_test_mgpu.sh", ["gpu", "2"], f"-p gpu --job-name=test {GPUS_2}", ["--launcher", "slurm"]),
        ("slurm_test_single.sh", ["gpu"],
         "-p gpu --job-name=test --gres=gpu:1 --ntasks=1 --cpus-per-task=5 --kill-on-bad-exit=1", []),
    ],
)  # fmt: skip
def test_scripts_for_slurm(tmp_path, slurm, name, first, asked, launched):
    words = words_of(name, tmp_path, slurm, *first, *OPTIONS)
    assert words[0] == "-u"
    assert Path(words[1]).resolve() == SCRIPTS.parent / ("train.py" if "train" in name else "test.py")
    assert words[2:] == [*launched, *OPTIONS]
    assert (tmp_path / "srun_options").read_text() == asked


def test_slurms_options_come_from_the_environment(tmp_path, slurm):
    own = {"GPUS_PER_NODE": 4, "CPUS_PER_TASK": 7, "SRUN_ARGS": "--qos=low --time=60"}
    words_of("slurm_train.sh", tmp_path, slurm | own, "gpu", "name", "8")
    asked = (tmp_path / "srun_options").read_text()
    assert "--gres=gpu:4 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=7" in asked
    assert asked.endswith("--qos=low --time=60")


SHORT = {
    "dist_train.sh": [],
    "torch_test.sh": [],
    "slurm_train.sh": ["gpu", "job"],
    "slurm_test_mgpu.sh": ["gpu"],
    "slurm_test_single.sh": [],
    "slurm_array.sh": [],
}


@pytest.mark.parametrize("name", SHORT)
def test_a_missing_argument_is_told(name):
    job = begin([SCRIPTS / name, *SHORT[name]])
    (status,), (output,) = finish(job)
    assert status != 0 and "usage: " in output


@pytest.mark.timeout(900)
def test_trained_under_slurm_and_evaluated_each_way(root, tmp_path, slurm):
    """Two tasks train; two tasks, two processes and one task evaluate, to the same numbers."""
    simulate_modelnet(tmp_path / "shapes", per_class=3, seed=0)
    common = ["--cfg_file", "cfgs/synthetic_models/pointnet_shapes.yaml", "--device", "cpu", "--workers", "0"]
    common += ["--output_dir", tmp_path]
    values = ["--set", "DATA_CONFIG.DATA_PATH", tmp_path / "shapes", "DATA_CONFIG.NUM_POINTS", "64"]

    def call(script, *arguments):
        job = begin([SCRIPTS / script, *arguments, *values], clean_environment(**slurm), cwd=root)
        (status,), (output,) = finish(job, timeout=240)
        assert status == 0, output
        return output

    out = call("slurm_train.sh", "gpu", "job", "2", *common, "--epochs", "1")
    assert "Global batch 32 = 16 scenes x 2 process(es)" in out, out
    accuracy = set()
    for tag, script, first in (
        ("two_tasks", "slurm_test_mgpu.sh", ["gpu", "2"]),
        ("two_processes", "dist_test.sh", ["2"]),
        ("one_task", "slurm_test_single.sh", ["gpu"]),
    ):
        call(script, *first, *common, "--eval_tag", tag)
        accuracy |= {f.read_text() for f in tmp_path.rglob(f"{tag}/report.txt")}
    assert len(accuracy) == 1


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck (apt-get install shellcheck)")
@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda p: p.name)
def test_shellcheck_finds_nothing(script):
    found = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
