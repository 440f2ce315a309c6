"""The batch and the learning rate are one contract."""

from dataclasses import replace

import pytest

from pcdet.train_utils.global_batch import describe_batch, micro_batch, require_global_batch, with_scaled_rate
from pcdet.train_utils.settings import Optimization

SETTINGS = Optimization(batch_size_per_gpu=4, lr=0.01, accumulation_steps=2)


@pytest.mark.parametrize("given, expected", [((8, 1, 1), 8), ((8, 2, 1), 4), ((8, 1, 4), 2), ((24, 3, 4), 2)])
def test_the_micro_batch_follows_from_the_global_one(given, expected):
    assert micro_batch(*given) == expected


@pytest.mark.parametrize("wanted, nearest", [(9, "Nearest: 8 or 12"), (3, "Nearest: 4"), (0, "Nearest: 4")])
def test_what_does_not_divide_is_refused_with_the_nearest_numbers(wanted, nearest):
    with pytest.raises(ValueError, match=rf"--batch_size {wanted} .* 2 processes x 2 micro-batches .*{nearest}$"):
        micro_batch(wanted, world=2, accumulation_steps=2)


def test_both_numbers_given_must_agree():
    require_global_batch(None, SETTINGS, world=2)
    require_global_batch(16, SETTINGS, world=2)
    with pytest.raises(ValueError, match=r"--batch_size 8, but 4 scenes .* x 2 processes x 2 micro-batches are 16"):
        require_global_batch(8, SETTINGS, world=2)


@pytest.mark.parametrize("scaling, expected", [("none", 0.01), ("linear", 0.04), ("sqrt", 0.02)])
def test_the_rate_follows_the_batch(scaling, expected):
    settings = replace(SETTINGS, lr_scaling=scaling, base_global_batch=4)
    assert with_scaled_rate(settings, 16).lr == pytest.approx(expected)


def test_both_rates_are_told():
    settings = replace(SETTINGS, lr_scaling="linear", base_global_batch=8)
    text = describe_batch(with_scaled_rate(settings, 16), world=2, unscaled=settings)
    assert text.startswith("Global batch 16 = 4 scenes x 2 process(es) x 2 micro-batch(es); learning rate 0.02 ")
    assert text.endswith("(0.01 for a batch of 8, scaled: linear)")
    assert describe_batch(SETTINGS, 1, SETTINGS).endswith("learning rate 0.01")


def test_scaling_without_a_base_is_refused():
    with pytest.raises(ValueError, match="BASE_GLOBAL_BATCH is None; it is what LR_SCALING needs"):
        Optimization(lr_scaling="linear")
