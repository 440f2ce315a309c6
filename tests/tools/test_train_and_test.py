"""From raw files to an evaluated classifier, through the commands."""

import json
import re

import pytest

from pcdet.datasets.synthetic import simulate_modelnet

SHAPES = "cfgs/synthetic_models/pointnet2_ssg_shapes.yaml"
SMALL_MODEL = ["MODEL.BACKBONE_3D.SA_CONFIG.NPOINTS", "[32, 8]", "MODEL.BACKBONE_3D.SA_CONFIG.NSAMPLE", "[4, 4]"]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    simulate_modelnet(folder, per_class=5, seed=0)
    return folder


def test_a_classifier_is_trained_resumed_and_evaluated(tools, shapes, tmp_path, capsys):
    small = ["DATA_CONFIG.NUM_POINTS", "128", "OPTIMIZATION.BATCH_SIZE_PER_GPU", "16"]
    common = ["--cfg_file", SHAPES, "--workers", "0", "--output_dir", str(tmp_path), "--device", "cpu"]
    end = ["--set", "DATA_CONFIG.DATA_PATH", str(shapes), *small]
    run = tmp_path / "synthetic_models" / "pointnet2_ssg_shapes" / "default"
    train, test = tools("train"), tools("test")

    assert train([*common, "--epochs", "1", *end]) == 0
    first = sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file())
    for name in ("ckpt/checkpoint_epoch_1.pth", "curves.png", "history.json", "pointnet2_ssg_shapes.yaml"):
        assert name in first
    assert "eval/eval_with_train/epoch_1/test/result.pkl" in first
    assert (run / "eval/eval_with_train/eval_list_test.txt").read_text() == "1\n"
    steps = json.loads((run / "history.json").read_text())["train/loss"][0]
    capsys.readouterr()

    assert train([*common, "--epochs", "1", *end]) == 0
    assert "Finished already (1/1 epochs)" in capsys.readouterr().out
    assert (run / "eval/eval_with_train/eval_list_test.txt").read_text() == "1\n"

    assert train([*common, "--epochs", "2", "--num_epochs_to_eval", "1", *end]) == 0
    out = capsys.readouterr().out
    assert "Resuming after 1 epochs" in out and "The run's length changed" in out
    assert json.loads((run / "history.json").read_text())["train/loss"][0][: len(steps)] == steps

    assert test([*common, "--save_to_file", "--draw", "1", "--infer_time", *end]) == 0
    folder = run / "eval" / "epoch_2" / "test" / "default"
    assert len(json.loads((folder / "final_result" / "data" / "results.json").read_text())) == 40
    assert (folder / "pictures" / "confusion.png").is_file()
    out = capsys.readouterr().out
    assert (folder / "report.txt").read_text().strip() in out and "ms a batch of 16 on cpu" in out

    assert train([*common, "--epochs", "1", "--no_resume", "--set", *end[1:]]) == 0
    assert (run / "ckpt_before_1" / "checkpoint_epoch_2.pth").is_file()
    assert [p.name for p in (run / "ckpt").iterdir()] == ["checkpoint_epoch_1.pth"]


def test_testing_without_a_checkpoint_names_the_folder(tools, shapes, tmp_path):
    given = ["--cfg_file", SHAPES, "--workers", "0", "--output_dir", str(tmp_path), "--device", "cpu"]
    with pytest.raises(FileNotFoundError, match=r"No checkpoint in .*pointnet2_ssg_shapes/default/ckpt"):
        tools("test")([*given, "--set", "DATA_CONFIG.DATA_PATH", str(shapes)])


def test_held_out_clouds_choose_the_epoch_and_votes_stand_beside(tools, shapes, tmp_path, capsys):
    common = ["--cfg_file", SHAPES, "--workers", "0", "--output_dir", str(tmp_path), "--device", "cpu"]
    small = ["DATA_CONFIG.NUM_POINTS", "128", "DATA_CONFIG.HOLD_OUT", "0.25", "MODEL.BACKBONE_3D.SA_CONFIG.NSAMPLE"]
    end = ["--set", "DATA_CONFIG.DATA_PATH", str(shapes), *small, "[4, 4]"]
    assert tools("train")([*common, "--epochs", "2", "--best_metric", "accuracy/overall", *end]) == 0
    run = tmp_path / "synthetic_models" / "pointnet2_ssg_shapes" / "default"
    out = capsys.readouterr().out
    assert "train: 120 clouds" in out and "val: 40 clouds" in out and "the best so far" in out
    evaluated = run / "eval" / "eval_with_train"
    assert (evaluated / "eval_list_val.txt").read_text() == "1\n2\n"
    assert (evaluated / "eval_list_test.txt").read_text() == "2\n"
    assert (evaluated / "best" / "test" / "metrics.json").is_file()

    assert tools("test")([*common, "--votes", "2", *end]) == 0
    out = capsys.readouterr().out
    assert "accuracy/overall: single pass" in out and "2 votes" in out and "chosen on held-out clouds" in out
    assert re.search(r"Performance of EPOCH [12] \(best_model\.pth\)", out), "which epoch was chosen"
    for epoch in ("epoch_2", "best"):
        folder = run / "eval" / epoch / "test" / "default"
        assert (folder / "pictures" / "confusion.png").is_file() and (folder / "votes_2" / "metrics.json").is_file()

    assert tools("test")([*common, "--split", "val", *end]) == 0
    assert (run / "eval" / "epoch_2" / "val" / "default" / "metrics.json").is_file()


def test_seeds_are_evaluated_together_and_votes_stand_beside(tools, shapes, tmp_path, capsys):
    common = ["--cfg_file", SHAPES, "--workers", "0", "--output_dir", str(tmp_path), "--device", "cpu"]
    end = ["--set", "DATA_CONFIG.DATA_PATH", str(shapes), "DATA_CONFIG.NUM_POINTS", "64", *SMALL_MODEL]
    for seed in ("0", "1"):
        assert tools("train")([*common, "--epochs", "1", "--seed", seed, "--extra_tag", f"few_seed_{seed}", *end]) == 0
    given = [*common, "--extra_tag", "few", "--votes", "2"]
    assert tools("test")([*given, "--seeds", "2", *end]) == 0
    group = tmp_path / "synthetic_models" / "pointnet2_ssg_shapes"
    summary = json.loads((group / "few_seeds" / "test" / "default" / "summary.json").read_text())
    assert list(summary) == ["last epoch", "last epoch, 2 votes"]
    for what, place in (("last epoch", ""), ("last epoch, 2 votes", "votes_2/")):
        files = [group / f"few_seed_{n}/eval/epoch_1/test/default/{place}metrics.json" for n in (0, 1)]
        reached = [json.loads(file.read_text())["accuracy/overall"] for file in files]
        row = summary[what]["accuracy/overall"]
        assert row["values"] == reached and row["mean"] == pytest.approx(sum(reached) / 2)
        assert row["std"] == pytest.approx(abs(reached[0] - reached[1]) / 2**0.5)
    assert "last epoch, 2 votes, 2 seeds: mean +- standard deviation" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match=r"No checkpoint in .*few_seed_2/ckpt"):
        tools("test")([*given, "--seeds", "3", *end])
    for wrong in (["--seeds", "1"], ["--seeds", "2", "--ckpt", "x.pth"]):
        with pytest.raises(SystemExit):
            tools("test")([*given, *wrong, *end])


def test_without_held_out_clouds_no_epoch_can_be_chosen(tools, shapes, tmp_path):
    given = ["--cfg_file", SHAPES, "--workers", "0", "--output_dir", str(tmp_path), "--device", "cpu"]
    with pytest.raises(ValueError, match="set HOLD_OUT"):
        tools("train")([*given, "--best_metric", "accuracy/overall", "--set", "DATA_CONFIG.DATA_PATH", str(shapes)])
    with pytest.raises(ValueError, match="--votes is for classifiers"):
        tools("test")(["--cfg_file", "cfgs/kitti_models/pointpillar.yaml", "--votes", "2"])
