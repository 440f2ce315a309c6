"""What data sets of equally long labelled clouds have in common: one item, one batch, voting."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from pcdet.datasets.whole_clouds.augmentation import AXES, CloudAugmentation, CloudAugmentor, rotation_matrix
from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo

Item = dict[str, Any]


class Vote(NamedTuple):
    """One of several views of every cloud whose scores are added up."""

    number: int  # from 0
    count: int
    turns: bool  # turn by ``number / count`` of a circle about the up axis; the order of the points always changes


class Example(NamedTuple):
    """One cloud as a subclass loads it."""

    cloud: np.ndarray  # (N, C) float32, normalised
    targets: Mapping[str, int | np.ndarray]  # batch key -> a number, or (N,) numbers, one a point


class CloudDataset(Dataset, ABC):
    """Equally long clouds. A subclass says how many there are, loads one, and names its columns and targets.

    Item ``i`` of epoch ``e`` draws from ``np.random.default_rng([seed, e, i])``; evaluation draws nothing. ``vote``
    may be set in evaluation: clouds are then turned, and their points reordered by numbers that follow from it alone.
    """

    vectors: slice | None = None  # columns of a loaded cloud that hold directions
    turned_votes: bool  # whether the views that vote are turned about the up axis, beside the order of their points

    def __init__(
        self,
        *,
        info: DatasetInfo,
        training: bool,
        seed: int,
        logger: logging.Logger,
        num_points: int,
        augmentation: CloudAugmentation | None,
    ):
        if num_points < 1:
            raise ValueError(f"NUM_POINTS is {num_points}; a cloud needs at least 1 point")
        self.info, self.class_names = info, info.class_names
        self.training = training
        self.seed = seed
        self.epoch = 0
        self.logger = logger
        self.num_points = num_points
        augmentation = augmentation or {}
        self.up_axis = AXES[augmentation.get("UP_AXIS", "y")]
        self.augment = CloudAugmentor(augmentation) if training and augmentation else None
        self.vote: Vote | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def frame_id(self, index: int) -> str:
        """Name of a cloud."""

    @abstractmethod
    def load(self, index: int, rng: np.random.Generator) -> Example:
        """A cloud of NUM_POINTS points; ``rng`` is drawn from in training only."""

    def set_epoch(self, epoch: int) -> None:
        """Draw other random numbers from now on. Evaluation draws none."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> Item:
        """One item: ``point_clouds`` (N, C) float32 and the targets, with the name and index of the cloud."""
        if not 0 <= index < len(self):
            raise IndexError(f"cloud {index} of a data set of {len(self)}")
        rng = np.random.default_rng([self.seed, self.epoch, index])
        cloud, targets = self.load(index, rng)
        rows = None
        if self.augment is not None:
            cloud, rows = self.augment.with_rows(cloud, self.vectors, rng)
        elif self.vote is not None:
            cloud, rows = self._viewed(cloud, index)
        if rows is not None:
            targets = {key: value[rows] if np.ndim(value) else value for key, value in targets.items()}
        return {
            "frame_id": self.frame_id(index),
            "index": index,
            "point_clouds": np.ascontiguousarray(cloud, dtype=np.float32),
            **targets,
        }

    def set_vote(self, number: int | None, count: int = 1) -> None:
        """Hand out view ``number`` of ``count``, or (``None``) the clouds as they are. For evaluation only."""
        self.vote = None if number is None else Vote(number, count, self.turned_votes)

    def _viewed(self, cloud: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The cloud as ``vote`` says, and the row that each of its rows was."""
        rows = self.vote_order(index)
        cloud = cloud[rows]
        if self.vote.turns:
            turn = rotation_matrix(self.up_axis, 2 * np.pi * self.vote.number / self.vote.count).astype(np.float32)
            for columns in (slice(0, 3), self.vectors):
                if columns is not None:
                    cloud[:, columns] = cloud[:, columns] @ turn
        return cloud, rows

    def vote_order(self, index: int) -> np.ndarray:
        """(N,) the order of a cloud's points in the present vote."""
        return np.random.default_rng([self.vote.number, index]).permutation(self.num_points)

    @staticmethod
    def collate(items: Sequence[Item]) -> Batch:
        """Items -> batch (the keys of ``pcdet.structures.batch``)."""
        out: Batch = {"batch_size": len(items)}
        for key, first in items[0].items():
            column = [item[key] for item in items]
            if key in ("frame_id", "index"):
                out[key] = column
            elif isinstance(first, np.ndarray):
                out[key] = torch.from_numpy(np.stack(column))
            else:
                out[key] = torch.tensor(column, dtype=torch.int64)
        return out


def to_unit_sphere(cloud: np.ndarray) -> np.ndarray:
    """Move the centroid of (N, 3 + C) to the origin and divide by the largest distance from it; other columns stay."""
    cloud = np.array(cloud)
    cloud[:, :3] -= cloud[:, :3].mean(axis=0)
    radius = np.linalg.norm(cloud[:, :3], axis=1).max()
    if radius > 0:  # a cloud of one repeated point stays at the origin
        cloud[:, :3] /= radius
    return cloud
