"""Options of tools/train.py: what each of them does in a run."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pcdet.datasets.synthetic import simulate_modelnet
from pcdet.train_utils.checkpoint import load_checkpoint

SHAPES = "cfgs/synthetic_models/pointnet_shapes.yaml"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    simulate_modelnet(folder, per_class=3, seed=0)
    return folder


@pytest.fixture
def train(tools, shapes, tmp_path):
    """``train(*options, sets=[...], tag="a")`` trains a small PointNet and returns the run's folder."""
    main = tools("train")

    def call(*options, sets=(), tag="a", epochs=1, batch=8):
        sizes = ["DATA_CONFIG.DATA_PATH", str(shapes), "DATA_CONFIG.NUM_POINTS", "32"]
        given = ["--cfg_file", SHAPES, "--workers", "0", "--device", "cpu", "--output_dir", str(tmp_path)]
        given += ["--extra_tag", tag, "--epochs", str(epochs), "--batch_size", str(batch), *options]
        assert main([*given, "--set", *sizes, *sets]) == 0
        return tmp_path / "synthetic_models" / "pointnet_shapes" / tag

    yield call
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture
def module(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "tools"))
    for name in ("_train_options", "train"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


def test_every_option_of_the_engine_reaches_it(module):
    options = "--ckpt_save_steps 7 --ckpt_save_time_interval 9 --max_ckpt_save_num 3 --ckpt_save_interval 2".split()
    options += (
        "--nan_policy skip --nan_limit 4 --sync_bn --logger_iter_interval 11 --use_tqdm_to_record --profile 6".split()
    )
    given = module("_train_options").parse("", ["--cfg_file", SHAPES, "--workers", "5", *options])

    class NoConfig:
        def dump(self):
            return "text"

    found = module("train").run_options(given, NoConfig(), Path("out"), torch.device("cpu"), 8)
    assert (found.checkpoint_steps, found.latest_seconds, found.max_checkpoints) == (7, 9, 3)
    assert (found.checkpoint_epochs, found.nan_policy, found.nan_limit, found.sync_bn) == (2, "skip", 4, True)
    assert found.profile_steps == 6
    assert (found.log_interval, found.bar, found.workers, found.seed, found.config_text) == (11, True, 5, 8, "text")


@pytest.mark.parametrize(
    "given, seed",
    [([], None), (["--fix_random_seed"], 666), (["--fix_random_seed", "5"], 5), (["--fix_random_seed", "0"], 0)],
)
def test_a_fixed_seed_is_a_bare_flag_or_a_number(module, given, seed):
    assert module("_train_options").parse("", ["--cfg_file", SHAPES, *given]).fix_random_seed == seed


def test_mixed_precision_in_a_type_is_mixed_precision(module):
    given = module("_train_options").parse("", ["--cfg_file", SHAPES, "--amp_dtype", "bf16"])
    assert module("_train_options").overrides(given) == [
        "OPTIMIZATION.USE_AMP", "True", "OPTIMIZATION.AMP_DTYPE", "bf16",
    ]  # fmt: skip


@pytest.mark.parametrize("spelling", ["--fresh", "--no_resume", "--no-resume"])
def test_beginning_anew_has_three_spellings(module, spelling):
    assert module("_train_options").parse("", ["--cfg_file", SHAPES, spelling]).no_resume


def test_early_stopping_needs_to_know_of_what(module, capsys):
    with pytest.raises(SystemExit):
        module("_train_options").parse("", ["--cfg_file", SHAPES, "--early_stop", "3"])
    assert "--early_stop goes with --best_metric" in capsys.readouterr().err


def test_half_precision_on_a_cpu_is_refused(train):
    with pytest.raises(ValueError, match="--amp_dtype fp16 needs a GPU"):
        train("--amp_dtype", "fp16")


def test_a_fixed_seed_gives_equal_bits_and_another_one_others(train):
    runs = [train("--fix_random_seed", seed, tag=tag) for tag, seed in (("a", "5"), ("b", "5"), ("c", "6"))]
    first, second, other = (load_checkpoint(r / "ckpt" / "checkpoint_epoch_1.pth") for r in runs)
    assert torch.are_deterministic_algorithms_enabled()
    assert first["seed"] == 5
    states = [saved["model_state"] for saved in (first, second, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_watching_a_run_keeps_the_best_and_stops_early(train, capsys):
    """A rate of zero improves nothing: after the first evaluation, one more is the last."""
    watch = ["--val_loss", "--best_metric", "val/loss", "--early_stop", "1", "--eval_interval", "1"]
    still = ["OPTIMIZATION.LR", "1e-12", "OPTIMIZATION.FREEZE_BN", "True", "OPTIMIZATION.EMA_DECAY", "0.5"]
    still += ["DATA_CONFIG.HOLD_OUT", "0.4"]  # what is watched; the test set chooses nothing
    run = train(*watch, "--ckpt_save_steps", "2", sets=still, epochs=5)
    out = capsys.readouterr().out
    assert "Stopping early: val/loss" in out and "Validation after epoch 1: val/" in out
    epochs = sorted(p.name for p in (run / "ckpt").glob("checkpoint_epoch*"))
    assert 2 <= len(epochs) < 5
    assert (run / "ckpt" / "best_model.pth").is_file() and list((run / "ckpt").glob("checkpoint_step_*.pth"))
    evaluated = run / "eval" / "eval_with_train"
    watched = (evaluated / "eval_list_val.txt").read_text().split()
    assert watched == [str(n) for n in range(1, len(epochs) + 1)], "each epoch once, none again at the end"
    assert (evaluated / "eval_list_test.txt").read_text().split() == [str(len(epochs))]
    assert train(*watch, sets=still, epochs=5) == run
    out = capsys.readouterr().out
    assert f"Finished already ({len(epochs)}/5 epochs). Train longer without --early_stop, anew with --fresh" in out


def test_the_yaml_says_how_often_training_is_evaluated(train, capsys):
    run = train(sets=["OPTIMIZATION.EVAL_INTERVAL", "2"], epochs=3)
    evaluated = run / "eval" / "eval_with_train" / "eval_list_test.txt"
    assert evaluated.read_text().split() == ["2", "3"]
    out = capsys.readouterr().out
    for words in ("Accuracy: ", "Performance of EPOCH 2", "overall accuracy", "mean class accuracy"):
        assert words in out
    run = train("--eval_interval", "1", sets=["OPTIMIZATION.EVAL_INTERVAL", "2"], epochs=2, tag="each")
    evaluated = run / "eval" / "eval_with_train" / "eval_list_test.txt"
    assert evaluated.read_text().split() == ["1", "2"], "the command line goes first"


def test_the_batch_and_the_rate_are_told(train, capsys):
    scaled = ["OPTIMIZATION.LR", "0.001", "OPTIMIZATION.LR_SCALING", "linear", "OPTIMIZATION.BASE_GLOBAL_BATCH", "4"]
    train("--accumulation_steps", "2", sets=scaled)
    out = capsys.readouterr().out
    assert "Global batch 8 = 4 scenes x 1 process(es) x 2 micro-batch(es); learning rate 0.002 (0.001 for" in out


def test_two_sizes_that_disagree_are_refused(train):
    with pytest.raises(ValueError, match="--batch_size 8, but 3 scenes"):
        train(sets=["OPTIMIZATION.BATCH_SIZE_PER_GPU", "3"])


def test_e12_a_bad_number_ends_the_command_with_a_status(shapes, root, tmp_path):
    """A rate of 1e30 makes the second loss infinite: one message, no traceback, status 1, the batch in a file."""
    given = ["--cfg_file", SHAPES, "--workers", "0", "--device", "cpu", "--output_dir", str(tmp_path)]
    sets = ["--set", "DATA_CONFIG.DATA_PATH", str(shapes), "DATA_CONFIG.NUM_POINTS", "32", "OPTIMIZATION.LR", "1e30"]
    done = subprocess.run(
        [sys.executable, "tools/train.py", *given, *sets], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "is not finite in epoch 1, step " in done.stdout and "Scenes: " in done.stdout
    assert len(list(tmp_path.rglob("non_finite_batch_rank0.pth"))) == 1


def test_another_seed_does_not_change_a_run_that_has_begun(train, capsys):
    train("--seed", "3", epochs=1)
    folder = train("--seed", "4", epochs=2)
    assert "The run began with seed 3 and goes on with it, not with 4" in capsys.readouterr().out
    assert load_checkpoint(folder / "ckpt" / "checkpoint_epoch_2.pth")["seed"] == 3
