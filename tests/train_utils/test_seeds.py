"""Draws from the global generators: of torch, NumPy and Python, in steps and in items."""

import random

import numpy as np
import pytest
import torch
from engine_fakes import FakeScenes

from pcdet.train_utils.batches import BatchPlan, training_loader
from pcdet.train_utils.seeds import seed_everything

CPU = torch.device("cpu")


def test_every_step_of_every_rank_draws_other_numbers():
    def draw(*stream):
        seed_everything(3, *stream)
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    streams = [(r, e, s) for r in range(3) for e in range(3) for s in range(3)]
    for kind in zip(*(draw(*stream) for stream in streams), strict=True):
        assert len(set(kind)) == len(streams)
    assert draw(1, 2, 0) == draw(1, 2, 0)


class GlobalDraws(FakeScenes):
    """As somebody's own data set may be: each item is a draw from each global generator."""

    def __getitem__(self, index):
        item = super().__getitem__(index)
        item["x"] = np.array([np.random.rand(), random.random(), torch.rand(1).item(), 0], dtype=np.float64)
        return item


def drawn(workers, seed=3, world=2):
    """(N, 3): the draws of NumPy, Python and torch for all items of two epochs on all ranks, by epoch and index."""
    found = {}
    for rank in range(world):
        plan = BatchPlan(8, 2, seed=seed, rank=rank, world=world)
        keys = [(step.epoch, i) for step in plan.steps(0, 2) for batch in step.batches for i in batch]
        loader = training_loader(GlobalDraws(8), plan, 0, 2, 0, workers, CPU)
        rows = [row for batch in loader for row in batch["x"][:, :3].tolist()]
        found |= dict(zip(keys, rows, strict=True))
    return torch.tensor([found[key] for key in sorted(found)], dtype=torch.float64)


@pytest.mark.parametrize("workers, world", [(2, 2), (2, 1), (1, 2)])
def test_e5_global_draws_of_items_are_distinct_and_of_neither_workers_nor_ranks(workers, world):
    """Two workers, two epochs, two ranks: no draw comes twice, and one worker on one rank draws the same."""
    found = drawn(workers, world=world)
    assert len(found) == 16
    for column in found.T:
        assert len(column.unique()) == 16
    assert torch.equal(found, drawn(1, world=1))
    assert not torch.equal(found, drawn(workers, seed=4, world=world))


def test_e5_without_workers_numpy_and_python_draw_the_same_and_torch_is_left_to_the_step():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    seed = BatchPlan(8, 2, seed=3)
    next(iter(training_loader(FakeScenes(8), seed, 0, 1, 0, 0, CPU)))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn(0, world=1)[:, :2], drawn(2)[:, :2])
