"""Learning rates: recorded curves, hand-computed values, the shortest runs."""

import json

import numpy as np
import pytest

from pcdet.train_utils.schedules import RunLength, StepValues, build_schedule, one_cycle
from pcdet.train_utils.settings import Optimization

SECOND = {"lr": 0.003, "moms": (0.95, 0.85), "pct_start": 0.4, "div_factor": 10.0}
EPOCHS = RunLength(total_steps=80, steps_per_epoch=10, samples_per_step=4)


def test_one_cycle_equals_the_recorded_curves(shared):
    recorded = np.load(shared / "oracles" / "openpcdet_data" / "lr_second.npz")
    values = [one_cycle(step, 8000, **SECOND) for step in range(8000)]
    np.testing.assert_allclose([v.lr for v in values], recorded["lr"], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose([v.momentum for v in values], recorded["mom"], rtol=1e-9)


def test_one_cycle_of_pv_rcnn_equals_the_recorded_points(shared):
    recorded = json.loads((shared / "oracles" / "openpcdet_data" / "lr.json").read_text())["pv_rcnn"]
    values = [one_cycle(step, 8000, **{**SECOND, "lr": 0.01}).lr for step in recorded["steps"]]
    np.testing.assert_allclose(values, recorded["lr"], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("step, lr, momentum", [(0, 0.0003, 0.95), (3200, 0.003, 0.85), (8000, 3e-8, 0.95)])
def test_one_cycle_at_its_corners(step, lr, momentum):
    values = one_cycle(step, 8000, **SECOND)
    assert values.lr == pytest.approx(lr)
    assert values.momentum == pytest.approx(momentum)


@pytest.mark.parametrize("total", [1, 2, 3])
def test_the_shortest_runs_divide_by_nothing(total):
    values = [one_cycle(step, total, **SECOND) for step in range(total + 1)]
    assert all(0 < v.lr <= 0.003 for v in values)
    assert values[-1].lr == pytest.approx(3e-8)


def schedule(**settings):
    return build_schedule(Optimization(**settings), EPOCHS)


def test_the_staircase_counts_samples_and_has_a_floor():
    rates = schedule(optimizer="adam_staircase", lr=0.001, decay_rate=0.7, decay_samples=40, lr_clip=1e-5)
    assert rates(9).lr == 0.001  # 36 samples
    assert rates(10).lr == pytest.approx(0.0007)  # 40 samples
    assert rates(20).lr == pytest.approx(0.00049)
    assert rates(10_000).lr == 1e-5


def test_batch_norm_momentum_falls_to_its_floor():
    given = {"bn_momentum": 0.5, "bn_decay": 0.5, "bn_momentum_clip": 0.01, "decay_samples": 40}
    rates = schedule(optimizer="adam_staircase", lr=0.001, **given)
    assert [rates(step).bn_momentum for step in (0, 9, 10, 20, 50, 60)] == [0.5, 0.5, 0.25, 0.125, 0.015625, 0.01]
    assert schedule(optimizer="adam_staircase").__call__(5).bn_momentum is None


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_steps_count_epochs(optimizer):
    rates = schedule(optimizer=optimizer, lr=0.01, decay_step_list=[2, 5], lr_decay=0.1, lr_clip=5e-4)
    assert rates(19) == StepValues(0.01)
    assert rates(20).lr == pytest.approx(0.001)
    assert rates(50).lr == 5e-4


def test_steps_after_a_cosine_warm_up():
    rates = schedule(optimizer="adam", lr=0.01, lr_warmup=True, warmup_epoch=2, div_factor=10, decay_step_list=[4])
    assert rates(0).lr == pytest.approx(0.001)
    assert rates(10).lr == pytest.approx(0.0055)
    assert rates(20).lr == rates(39).lr == 0.01
    assert rates(40).lr == pytest.approx(0.001)


def test_cosine_anneal_warms_up_in_a_straight_line():
    rates = schedule(optimizer="adam_cosineanneal", lr=0.003, warmup_iter=8)
    assert [rates(step).lr for step in (0, 4, 8, 44, 80)] == pytest.approx([0.001, 0.002, 0.003, 0.0015, 0.0])


@pytest.mark.parametrize(
    "block, message",
    [
        ({"LRR": 0.1}, "takes no option LRR. Did you mean 'LR'"),
        ({"LR": 0}, "OPTIMIZATION.LR is 0; it should be above 0"),
        ({"PCT_START": 2}, "PCT_START is 2"),
        ({"DECAY_STEP_LIST": [45, 35]}, "rising order"),
    ],
)
def test_settings_refuse_what_cannot_be_used(block, message):
    with pytest.raises(ValueError, match=message):
        Optimization.from_settings(block)
