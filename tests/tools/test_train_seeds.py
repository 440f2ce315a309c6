"""Several seeds: the commands that are run, and the table of what they reached, by hand."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

CONFIG = "cfgs/synthetic_models/pointnet2_ssg_shapes.yaml"
STOPPED = "--sync_bn"  # any option serves to tell the fake training that a signal comes
REACHED = {"0": 0.90, "1": 0.94, "2": 0.92}


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Instead of training, write the metrics that each seed reaches."""
    seen = []

    def train(command, check):
        seen.append(command)
        seed, tag = command[command.index("--seed") + 1], command[command.index("--extra_tag") + 1]
        if seed not in REACHED:
            return SimpleNamespace(returncode=1)
        run = tmp_path / "synthetic_models" / "pointnet2_ssg_shapes" / tag / "eval" / "eval_with_train"
        for epoch, value in (("epoch_9", 0.1), ("epoch_10", REACHED[seed]), ("best", 0.5)):
            folder = run / epoch / "test"
            folder.mkdir(parents=True)
            (folder / "metrics.json").write_text(json.dumps({"accuracy/overall": value}))
        ended = "stopped" if seed == "2" and STOPPED in command else "finished"
        Path(command[command.index("--status_file") + 1]).write_text(f"{ended}\n")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", train)
    return seen


def test_mean_and_deviation_of_three_seeds(tools, commands, tmp_path, capsys):
    given = ["--seeds", "3", "--cfg_file", CONFIG, "--output_dir", str(tmp_path), "--epochs", "10"]
    assert tools("train_seeds")([*given, "--set", "DATA_CONFIG.NUM_POINTS", "64"]) == 0
    out = capsys.readouterr().out
    assert "accuracy/overall 0.9200 +- 0.0200  (0.9000 0.9400 0.9200)" in out
    summary = json.loads((tmp_path / "synthetic_models/pointnet2_ssg_shapes/default_seeds.json").read_text())
    assert summary["chosen epoch"]["accuracy/overall"]["mean"] == 0.5
    assert [c[c.index("--seed") + 1] for c in commands] == ["0", "1", "2"]
    assert commands[0][-5:] == ["--epochs", "10", "--set", "DATA_CONFIG.NUM_POINTS", "64"]


def test_a_seed_that_fails_is_named(tools, commands, tmp_path):
    with pytest.raises(ValueError, match="seed 3: training ended with the status 1"):
        tools("train_seeds")(["--seeds", "4", "--cfg_file", CONFIG, "--output_dir", str(tmp_path)])


def test_a_seed_that_was_stopped_does_not_count_with_an_earlier_evaluation(tools, commands, tmp_path):
    with pytest.raises(ValueError, match="seed 2: training was stopped by a signal; the same command goes on"):
        tools("train_seeds")(["--cfg_file", CONFIG, "--output_dir", str(tmp_path), STOPPED])
    assert not list(tmp_path.rglob("default_seeds.json"))


@pytest.mark.parametrize("option", ["--seed=7", "--fix_random_seed", "--print_config"])
def test_options_that_do_not_go_with_a_series_are_refused(option, tools, commands, tmp_path, capsys):
    with pytest.raises(SystemExit):
        tools("train_seeds")(["--cfg_file", CONFIG, "--output_dir", str(tmp_path), option])
    assert option.removesuffix("=7") in capsys.readouterr().err and not commands
