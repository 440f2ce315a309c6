"""The moving average of the weights."""

import pytest
import torch
from engine_fakes import fresh_model, weights

from pcdet.train_utils.ema import WeightAverage, state_to_evaluate

TAKEN = torch.tensor(True)


def moved(model, by):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by
    model.norm.num_batches_tracked += 1


def test_the_decay_begins_low_and_counters_are_the_models():
    """By hand: the first decays are 2/11 and 3/12, then at most 0.5."""
    model = fresh_model()
    average = WeightAverage(model, 0.2)
    start = model.last.bias.detach().clone()
    moved(model, 1.0)
    average.update(model, TAKEN)
    torch.testing.assert_close(average.state["last.bias"], start + 9 / 11)
    moved(model, 1.0)
    average.update(model, TAKEN)  # 0.2, since 3/12 is above it
    torch.testing.assert_close(average.state["last.bias"], start + 0.2 * 9 / 11 + 0.8 * 2)
    assert average.state["norm.num_batches_tracked"].item() == 2


def test_the_model_has_the_averaged_weights_only_within():
    model = fresh_model()
    average = WeightAverage(model, 0.9)
    moved(model, 1.0)
    own = weights(model)
    with pytest.raises(KeyError), average.in_place_of(model):
        assert torch.equal(model.last.bias, average.state["last.bias"])
        raise KeyError
    assert all(torch.equal(own[name], value) for name, value in weights(model).items())


def test_a_saved_average_goes_on_to_the_bit():
    model = fresh_model()
    whole, first = WeightAverage(model, 0.9), WeightAverage(model, 0.9)
    for average in (whole, first):
        average.update(model, TAKEN)
    moved(model, 0.5)
    second = WeightAverage(model, 0.9)
    second.load_state_dict(first.state_dict())
    for average in (whole, second):
        average.update(model, TAKEN)
    assert all(torch.equal(whole.state[name], second.state[name]) for name in whole.state)


def test_an_evaluation_takes_the_average_where_there_is_one():
    saved = {"model_state": {"w": 1}, "ema": {"updates": 3, "model_state": {"w": 2}}}
    assert state_to_evaluate(saved)["model_state"] == {"w": 2}
    assert state_to_evaluate({"model_state": {"w": 1}, "ema": {}})["model_state"] == {"w": 1}
