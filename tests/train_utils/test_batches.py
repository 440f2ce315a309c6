"""Which scenes form which batch."""

import pytest
import torch
from engine_fakes import FakeScenes

from pcdet.train_utils.batches import BatchPlan, training_loader

CPU = torch.device("cpu")


def flat(batches):
    return [i for batch in batches for i in batch]


def test_an_epoch_has_every_scene_once_in_another_order_each_time():
    plan = BatchPlan(10, 4, seed=1)
    assert sorted(flat(plan.batches(0))) == list(range(10))
    assert plan.batches(0) != plan.batches(1)
    assert plan.batches(3) == BatchPlan(10, 4, seed=1).batches(3)
    assert plan.batches(0) != BatchPlan(10, 4, seed=2).batches(0)
    assert [len(b) for b in plan.batches(0)] == [4, 4, 2]


@pytest.mark.parametrize("length, world", [(7, 2), (8, 2), (7, 4), (3, 4)])
def test_e3_ranks_take_equally_many_steps_and_miss_no_scene(length, world):
    plans = [BatchPlan(length, 2, seed=0, rank=r, world=world) for r in range(world)]
    batches = [p.batches(5) for p in plans]
    assert len({len(b) for b in batches}) == 1
    assert len({tuple(map(len, b)) for b in batches}) == 1
    if not plans[0].drops_single:
        assert set(flat(flat(batches))) == set(range(length))


def test_ranks_share_the_order_of_a_single_process():
    """Step for step, two ranks of batch 2 see the scenes that one of batch 4 sees."""
    one = BatchPlan(12, 4, seed=0).batches(0)
    two = [BatchPlan(12, 2, seed=0, rank=r, world=2).batches(0) for r in range(2)]
    assert [set(b) for b in one] == [set(a) | set(b) for a, b in zip(*two, strict=True)]


@pytest.mark.parametrize(
    "length, batch_size, sizes", [(5, 2, [2, 2]), (1, 2, [1]), (3, 1, [1, 1, 1]), (4, 2, [2, 2]), (6, 4, [4, 2])]
)
def test_e1_a_single_scene_at_the_end_is_dropped(length, batch_size, sizes):
    assert [len(b) for b in BatchPlan(length, batch_size, seed=0).batches(0)] == sizes


def test_steps_group_micro_batches():
    plan = BatchPlan(14, 2, 4, seed=0)
    steps = list(plan.steps(0, 2))
    assert [(s.epoch, s.number, len(s.batches)) for s in steps] == [(0, 0, 4), (0, 1, 3), (1, 0, 4), (1, 1, 3)]
    assert [plan.micro_batches(0, n) for n in range(2)] == [4, 3]
    assert list(plan.steps(0, 2, first_step=1)) == steps[1:]


@pytest.mark.parametrize("length, batch_size, accumulation, world", [(23, 2, 2, 2), (9, 4, 1, 1), (8, 1, 3, 2)])
def test_a_part_of_an_epoch_is_the_end_of_the_whole(length, batch_size, accumulation, world):
    """Continued with the same batches, every step is the one of the run that never stopped."""
    for rank in range(world):
        given = {"seed": 3, "rank": rank, "world": world}
        whole = BatchPlan(length, batch_size, accumulation, **given)
        for step in range(whole.steps_per_epoch):
            rest = BatchPlan(length, batch_size, accumulation, **given)
            assert rest.continue_from(1, whole.seen(1, step)) == step
            assert list(rest.steps(1, 3, step)) == list(whole.steps(1, 3, step))
            assert rest.seen(1, step) == whole.seen(1, step)
            assert rest.micro_batches(1, step) == whole.micro_batches(1, step)


@pytest.mark.parametrize("batch_size, accumulation, world", [(2, 1, 1), (1, 1, 3), (2, 2, 1), (3, 1, 2)])
def test_another_world_sees_the_scenes_that_are_left(batch_size, accumulation, world):
    """12 of 25 scenes were seen in steps of 4; whoever goes on sees the other 13, none twice but to fill up ranks."""
    order = flat(BatchPlan(25, 1, seed=3).batches(0))
    plans = [BatchPlan(25, batch_size, accumulation, seed=3, rank=r, world=world) for r in range(world)]
    starts = {p.continue_from(0, 12) for p in plans}
    assert len(starts) == 1
    seen = {i for p in plans for step in p.steps(0, 1, *starts) for i in flat(step.batches)}
    dropped = plans[0].part(0).scenes_per_rank * world - len(flat(flat([p.batches(0) for p in plans])))
    assert seen <= set(order[12:]) | set(order[:world]) and len(seen & set(order[12:])) >= 13 - dropped
    assert plans[0].seen(0, *starts) == 12
    assert [s.number for s in plans[0].steps(0, 1, *starts)][-1] == plans[0].steps_per_epoch - 1
    assert plans[0].part(1) == plans[0].whole


def test_a_rest_of_a_single_scene_ends_the_epoch():
    plan = BatchPlan(9, 4, seed=0)
    assert plan.continue_from(0, 8) == plan.steps_per_epoch == 2
    assert list(plan.steps(0, 1)) == []


def test_nothing_to_train_on_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        BatchPlan(0, 2, seed=0)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_e5_items_depend_on_the_epoch_and_not_on_the_workers(workers):
    def draws(count):
        loader = training_loader(FakeScenes(6, noise=1.0), BatchPlan(6, 2, seed=0), 0, 2, 0, count, CPU)
        return torch.cat([batch["x"] for batch in loader])

    got = draws(workers)
    assert torch.equal(got, draws(0))
    assert len(torch.unique(got[:, 0])) == 12  # no number was drawn twice, in neither epoch


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    list(training_loader(FakeScenes(6), BatchPlan(6, 2, seed=0), 0, 1, 0, 1, CPU))
    assert torch.equal(torch.rand(3), expected)
