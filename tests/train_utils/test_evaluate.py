"""Evaluation: order, files, options."""

import dataclasses
import json

import pytest
import torch
from engine_fakes import FakeScenes, fresh_model

from pcdet.train_utils.checkpoint import save_checkpoint
from pcdet.train_utils.evaluate import Evaluator, evaluate_files, evaluated_epochs, in_order
from pcdet.utils.files import read_pickle

CPU = torch.device("cpu")


def test_results_stand_in_the_data_sets_order(tmp_path):
    evaluate = Evaluator(
        fresh_model(), FakeScenes(7), CPU, batch_size=2, options={"score_threshold": 0.7, "min_points": 3}
    )
    out = evaluate(tmp_path)
    assert [r["index"] for r in out.results] == list(range(7))
    assert out.report.metrics["threshold"] == 0.7
    assert json.loads((tmp_path / "metrics.json").read_text()) == out.report.metrics
    assert [r["frame_id"] for r in read_pickle(tmp_path / "result.pkl")] == [f"{i:06d}" for i in range(7)]
    assert not (tmp_path / "final_result").exists()


def test_evaluation_changes_nothing_in_the_model(tmp_path):
    model = fresh_model().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    Evaluator(model, FakeScenes(4), CPU, batch_size=2, save_to_file=True)(tmp_path)
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert (tmp_path / "final_result" / "data" / "ids.txt").read_text().split() == [f"{i:06d}" for i in range(4)]


def test_checkpoints_are_evaluated_into_openpcdets_folders(tmp_path):
    model = fresh_model()
    files = [tmp_path / f"checkpoint_epoch_{n}.pth" for n in (1, 2)]
    for file in files:
        save_checkpoint(file, {"epoch": 1, "it": 1, "model_state": model.state_dict()})
    evaluate_files(Evaluator(model, FakeScenes(4), CPU, batch_size=2), files, tmp_path / "eval", "val")
    assert evaluated_epochs(tmp_path / "eval", "val") == {"1", "2"}
    assert (tmp_path / "eval" / "epoch_2" / "val" / "result.pkl").is_file()
    assert list((tmp_path / "eval" / "tensorboard_val").glob("events*"))


def test_a_checkpoint_with_other_shapes_is_evaluated_only_in_part_and_only_if_told(tmp_path):
    model = fresh_model()
    state = {k: v + 1 for k, v in model.state_dict().items()}
    name = next(iter(state))
    state[name] = torch.zeros(3, 3, 3)
    save_checkpoint(tmp_path / "a.pth", {"model_state": state})
    evaluate = Evaluator(model, FakeScenes(2), CPU, batch_size=2)
    with pytest.raises(ValueError, match=f"other shape +{name}"):
        evaluate.checkpoint(tmp_path / "a.pth", tmp_path / "eval")
    before = model.state_dict()[name].clone()
    dataclasses.replace(evaluate, partial=True).checkpoint(tmp_path / "a.pth", tmp_path / "eval")
    assert torch.equal(model.state_dict()[name], before)
    others = [k for k in state if k != name]
    assert others and all(torch.equal(model.state_dict()[k], state[k]) for k in others)


def test_d13_results_of_ranks_are_merged_without_loss():
    parts = [[{"index": i} for i in range(r, 7, 4)] for r in range(4)]
    assert [r["index"] for r in in_order(parts, 7)] == list(range(7))
    with pytest.raises(ValueError, match=r"without a result: \[6\]"):
        in_order(parts[:2] + [parts[2][:1]] + parts[3:], 7)
    with pytest.raises(ValueError, match="8 results for 7 scenes"):
        in_order([*parts, [{"index": 0}]], 7)
