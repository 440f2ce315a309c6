from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pcdet.models import wiring
from pcdet.structures.dataset_info import DatasetInfo


class A(NamedTuple):
    a: int


class B(NamedTuple):
    b: int


class MakesA(nn.Module):
    def forward(self, points: int) -> A:
        return A(points + 1)


class MakesB(nn.Module):
    def forward(self, a: int, extra: int = 10) -> B:
        return B(a * extra)


class Untyped(nn.Module):
    def forward(self, points: Tensor):
        return points


class Holder(nn.Module):
    def __init__(self, **slots):
        super().__init__()
        for name, module in slots.items():
            self.add_module(name, module)


def test_slots_are_fed_by_name_and_the_batch_stays_as_it_is():
    model = Holder(one=MakesA(), two=MakesB())
    steps = wiring.plan({"one": model.one, "two": model.two}, ["points", "extra"])
    batch = {"points": 1, "extra": 5, "other": "x"}
    assert wiring.run(model, steps, batch).results == {"one": A(2), "two": B(10)}
    assert batch == {"points": 1, "extra": 5, "other": "x"}


def test_what_may_be_missing_takes_its_default():
    model = Holder(one=MakesA(), two=MakesB())
    slots = {"one": model.one, "two": model.two}
    assert wiring.run(model, wiring.plan(slots, ["points"]), {"points": 1}).results["two"] == B(20)
    assert wiring.run(model, wiring.plan(slots, ["points", "extra"]), {"points": 1}).results["two"] == B(20)


def test_a_key_that_nobody_writes_is_named_when_the_model_is_built():
    with pytest.raises(
        ValueError, match=r"two \(MakesB\) reads 'a', nobody before it writes it; there are \['points'\]"
    ):
        wiring.plan({"two": MakesB(), "one": MakesA()}, ["points"])


def test_a_key_is_written_once():
    with pytest.raises(ValueError, match=r"again \(MakesA\) writes \['a'\], which exist already"):
        wiring.plan({"one": MakesA(), "again": MakesA()}, ["points"])


def test_a_slot_must_say_what_it_writes():
    with pytest.raises(TypeError, match="Untyped.forward must declare the NamedTuple"):
        wiring.plan({"one": Untyped()}, ["points"])


def test_keys_of_the_data():
    classes, features = ("Car",), ("x", "y", "z")
    clouds = wiring.batch_keys(DatasetInfo(classes, features))
    assert "point_clouds" in clouds and "points" not in clouds
    area = (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    assert "voxels" not in wiring.batch_keys(DatasetInfo(classes, features, area))
    assert "voxels" in wiring.batch_keys(DatasetInfo(classes, features, area, (1, 1, 1), (1, 1, 1), 5))


def test_replaced_slots_are_run():
    """What is done to a model's children after it was built, such as wrapping, takes effect."""

    class Doubled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, points):
            return A(self.inner(points).a * 2)

    model = Holder(one=MakesA())
    steps = wiring.plan({"one": model.one}, ["points"])
    model.one = Doubled(model.one)
    assert wiring.run(model, steps, {"points": torch.tensor(1)}).results["one"].a == 4
