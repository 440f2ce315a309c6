"""The command lines: errors without a traceback, the configuration before torch."""

import os
import subprocess
import sys

import pytest

SHAPES = "cfgs/synthetic_models/pointnet2_ssg_shapes.yaml"


@pytest.fixture
def command(root):
    def call(name, *arguments, status, environment=None):
        done = subprocess.run(
            [sys.executable, str(root / "tools" / name), *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=root,
            timeout=120,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    return call


@pytest.mark.parametrize("name", ["train.py", "test.py"])
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--cfg_file", "cfgs/nothing.yaml"], "is not found. Tried:"),
        (["--cfg_file", SHAPES, "--set", "OPTIMIZATION.LRR", "0.1"], "LR"),
        (["--cfg_file", SHAPES, "--set", "OPTIMIZATION.LR", "fast"], "OPTIMIZATION.LR"),
        (["--cfg_file", SHAPES, "--set", "OPTIMIZATION.LR"], "--set"),
        (["--cfg_file", SHAPES, "--batch_size", "0"], "--batch_size 0 cannot be divided"),
    ],
)
def test_a_configuration_error_is_one_message_and_a_status(command, name, arguments, message):
    _, error = command(name, *arguments, status=1)
    assert error.startswith("error: ") and message in error


@pytest.mark.parametrize("name", ["train.py", "test.py"])
def test_print_config_needs_no_torch(command, tmp_path, name):
    """A package called torch that refuses to be imported stands first on the path."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    environment = {"PYTHONPATH": str(tmp_path)}
    out, _ = command(
        name, "--cfg_file", SHAPES, "--print_config", "--batch_size", "8", status=0, environment=environment
    )
    assert "OPTIMIZATION.LR: 0.003" in out and "# cfgs/synthetic_models/pointnet2_ssg_shapes.yaml" in out
    assert "OPTIMIZATION.BATCH_SIZE_PER_GPU: 8" in out


def test_flags_that_are_values_reach_the_configuration(command):
    flags = ["--epochs", "7", "--accumulation_steps", "3", "--use_amp"]
    out, _ = command("train.py", "--cfg_file", SHAPES, "--print_config", *flags, status=0)
    for line in ("OPTIMIZATION.NUM_EPOCHS: 7", "OPTIMIZATION.ACCUMULATION_STEPS: 3", "OPTIMIZATION.USE_AMP: True"):
        assert line in out


def test_the_total_batch_is_divided_among_processes(command):
    given = ["--cfg_file", SHAPES, "--print_config", "--launcher", "pytorch"]
    out, _ = command("train.py", *given, "--batch_size", "8", status=0, environment={"WORLD_SIZE": "4"})
    assert "OPTIMIZATION.BATCH_SIZE_PER_GPU: 2" in out
    _, error = command("train.py", *given, "--batch_size", "6", status=1, environment={"WORLD_SIZE": "4"})
    assert "--batch_size 6 cannot be divided among 4 processes" in error


def test_missing_data_are_named(command, tmp_path):
    arguments = ["--cfg_file", SHAPES, "--output_dir", tmp_path, "--set", "DATA_CONFIG.DATA_PATH", tmp_path / "none"]
    out, _ = command("train.py", *arguments, status=1)
    assert "(DATA_PATH) is not found" in out
    logs = list(tmp_path.rglob("train_*.log"))
    assert len(logs) == 1 and "(DATA_PATH) is not found" in logs[0].read_text()


@pytest.mark.parametrize("flag", [["--launcher", "pytorch"], ["--launcher", "slurm"]])
def test_a_launcher_that_did_not_launch_is_an_error(command, tmp_path, flag):
    _, error = command("train.py", "--cfg_file", SHAPES, "--output_dir", tmp_path, *flag, status=1)
    assert "is not set. Start with" in error
