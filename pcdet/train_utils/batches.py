"""Which scenes form which batch, and the loaders that fetch them.

The plan is a function of (seed, epoch) alone: neither the workers nor an interruption change it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from pcdet.structures.batch import Batch
from pcdet.train_utils.seeds import seed_item
from pcdet.train_utils.signals import leave_to_the_parent
from pcdet.utils import distributed as ranks


class Step(NamedTuple):
    """One optimiser step of an epoch: this rank's micro-batches, each a list of scene indices."""

    epoch: int
    number: int
    batches: list[list[int]]


class Part(NamedTuple):
    """What a run with these batches takes of an epoch: all of it, or what an interrupted run left over."""

    seen: int  # scenes of the epoch's order that were seen before
    first_step: int  # number of the first step
    scenes_per_rank: int
    batches: int  # micro-batches of each rank


class BatchPlan:
    """This rank's part of every epoch.

    The order of an epoch is a permutation, filled up to a multiple of the ranks by its own beginning so that all ranks
    take equally many steps. A step takes the next ``samples_per_step`` scenes of the order, however they are divided
    among ranks and micro-batches, so that a place in the order means the same to every number of ranks.

    The last batch of an epoch is dropped if it holds a single scene (BatchNorm cannot train on one value per channel)
    unless batches have the size 1 or it is the only one. The last step of an epoch may have fewer micro-batches than
    the others, and the last micro-batch fewer scenes.
    """

    def __init__(
        self, length: int, batch_size: int, accumulation_steps: int = 1, *, seed: int, rank: int = 0, world: int = 1
    ):
        if length < 1:
            raise ValueError("the training set is empty: 0 scenes")
        self.length = length
        self.batch_size = batch_size
        self.accumulation_steps = accumulation_steps
        self.seed = seed
        self.rank = rank
        self.world = world
        self.whole = self._part(seen=0)
        self.steps_per_epoch = -(-self.whole.batches // accumulation_steps)
        self.resumed: tuple[int, Part] | None = None  # an epoch of which a part was seen before, and the rest

    def _part(self, seen: int) -> Part:
        """What is left of an epoch after ``seen`` scenes; its last step is the epoch's last."""
        scenes = -(-max(self.length - seen, 0) // self.world)
        single = self.batch_size > 1 and scenes % self.batch_size == 1 and (scenes > 1 or seen > 0)
        batches = -(-scenes // self.batch_size) - single
        steps = -(-batches // self.accumulation_steps)
        return Part(seen, self.steps_per_epoch - steps if seen else 0, scenes, batches)

    @property
    def drops_single(self) -> bool:
        """Is the last batch of an epoch left out?"""
        return self.whole.batches * self.batch_size < self.whole.scenes_per_rank

    @property
    def samples_per_step(self) -> int:
        """Scenes of a full step over all ranks: the global batch."""
        return self.batch_size * self.accumulation_steps * self.world

    def continue_from(self, epoch: int, seen: int) -> int:
        """Let ``epoch`` begin after ``seen`` scenes of its order. Returns the number of its first step."""
        part = self._part(seen)
        self.resumed = (epoch, part)
        return part.first_step

    def part(self, epoch: int) -> Part:
        """What this run takes of an epoch."""
        if self.resumed is not None and self.resumed[0] == epoch:
            return self.resumed[1]
        return self.whole

    def seen(self, epoch: int, step: int) -> int:
        """Scenes of an epoch's order that were seen before a step."""
        part = self.part(epoch)
        return part.seen + (step - part.first_step) * self.samples_per_step

    def micro_batches(self, epoch: int, number: int) -> int:
        """How many micro-batches a step has; the last of an epoch may have fewer than the others."""
        part = self.part(epoch)
        return min(self.accumulation_steps, part.batches - (number - part.first_step) * self.accumulation_steps)

    def batches(self, epoch: int) -> list[list[int]]:
        """Scene indices of this rank's batches in an epoch."""
        part = self.part(epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.length)
        filled = np.resize(order, part.seen + part.scenes_per_rank * self.world)[part.seen :]
        mine = filled[self.rank :: self.world].tolist()
        cuts = range(0, part.batches * self.batch_size, self.batch_size)
        return [mine[cut : cut + self.batch_size] for cut in cuts]

    def steps(self, first_epoch: int, last_epoch: int, first_step: int = 0) -> Iterator[Step]:
        """The steps from (``first_epoch``, ``first_step``) to the end of the epoch before ``last_epoch``."""
        for epoch in range(first_epoch, last_epoch):
            batches, before = self.batches(epoch), self.part(epoch).first_step
            for number in range(max(first_step, before) if epoch == first_epoch else before, self.steps_per_epoch):
                cut = (number - before) * self.accumulation_steps
                yield Step(epoch, number, batches[cut : cut + self.accumulation_steps])


class EpochItems(Dataset):
    """Items addressed by (epoch, index), so that workers which live through many epochs draw each epoch's numbers."""

    def __init__(self, dataset: Any, seed: int):
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        seed_item(self.seed, epoch, index)
        self.dataset.set_epoch(epoch)
        return self.dataset[index]


class StepKeys:
    """The items of many steps for a loader, micro-batch after micro-batch; made while they are asked for."""

    def __init__(self, plan: BatchPlan, first_epoch: int, last_epoch: int, first_step: int):
        self.plan = plan
        self.bounds = (first_epoch, last_epoch, first_step)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in self.plan.steps(*self.bounds):
            for batch in step.batches:
                yield [(step.epoch, index) for index in batch]


def training_loader(
    dataset: Any,
    plan: BatchPlan,
    first_epoch: int,
    last_epoch: int,
    first_step: int,
    workers: int,
    device: torch.device,
) -> DataLoader:
    """The micro-batches of ``plan.steps(...)`` one after the other. Workers start once for all epochs."""
    keys = StepKeys(plan, first_epoch, last_epoch, first_step)
    return _loader(EpochItems(dataset, plan.seed), keys, dataset, workers, device)


def evaluation_loader(dataset: Any, batch_size: int, workers: int, device: torch.device) -> DataLoader:
    """This rank's scenes in the data set's order; no scene stands twice, so ranks may hold different numbers."""
    mine = list(range(ranks.rank(), len(dataset), ranks.world_size()))
    keys = [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
    return _loader(dataset, keys, dataset, workers, device)


def _loader(items: Dataset, keys: Iterable[list[Any]], dataset: Any, workers: int, device: torch.device) -> DataLoader:
    return DataLoader(
        items,
        batch_sampler=keys,
        collate_fn=dataset.collate,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        worker_init_fn=leave_to_the_parent,
        # The loader draws a seed for its workers. Items have their own, so torch's generator is left alone.
        generator=torch.Generator().manual_seed(0),
    )


def describe_scenes(batch: Batch) -> str:
    """Names of a batch's scenes for a message."""
    return ", ".join(str(name) for name in batch.get("frame_id", ())) or "scenes without a name"
